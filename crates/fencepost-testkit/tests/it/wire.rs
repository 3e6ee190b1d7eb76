//! Every fault of the wire, before an echo server.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_testkit::servers::{free_port, redis};
use fencepost_testkit::wait::{self, TIMEOUT};
use fencepost_testkit::wire::{Direction, Wire};

/// Short, for reads that must find nothing: a slow machine makes them pass, never fail.
const A_MOMENT: Duration = Duration::from_millis(100);

struct Echo {
    port: u16,
    received: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(AtomicUsize::new(0));
        let counted = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, counted) = (stream.unwrap(), counted.clone());
                std::thread::spawn(move || echo(stream, &counted));
            }
        });
        Self { port, received }
    }

    fn has_received(&self, bytes: usize) {
        wait::block_until("the server receives", || self.received.load(Ordering::SeqCst) == bytes);
    }
}

fn echo(mut stream: TcpStream, counted: &AtomicUsize) {
    let mut bytes = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        counted.fetch_add(length, Ordering::SeqCst);
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

fn client(wire: &Wire) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, wire.port())).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

#[track_caller]
fn receives(stream: &mut TcpStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
}

#[track_caller]
fn receives_nothing(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(A_MOMENT)).unwrap();
    let kind = stream.read(&mut [0; 8]).unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind:?}");
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
}

fn start() -> (Echo, Wire, TcpStream) {
    let echo = Echo::start();
    let wire = Wire::to(echo.port);
    let mut stream = client(&wire);
    send(&mut stream, "first");
    receives(&mut stream, "first");
    (echo, wire, stream)
}

#[test]
fn a_wire_without_faults_forwards_everything_and_the_close() {
    let (_echo, wire, mut stream) = start();
    let long = "long ".repeat(100_000);
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        scope.spawn(move || writer.write_all("long ".repeat(100_000).as_bytes()).unwrap());
        receives(&mut stream, &long);
    });
    assert_eq!(wire.connections(), 1);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    wait::block_until("the connection is over", || wire.connections() == 0);
}

#[test]
fn a_delay_ends_when_the_wire_is_healed() {
    let (_echo, wire, mut stream) = start();
    let (clock, delay) = (Clock::system(), Duration::from_millis(50));
    wire.delay(delay);
    let sent = clock.now();
    send(&mut stream, "late");
    receives(&mut stream, "late");
    assert!(clock.now().since(sent) >= 2 * delay);
    wire.delay(10 * TIMEOUT);
    send(&mut stream, "never");
    receives_nothing(&mut stream);
    wire.heal();
    receives(&mut stream, "never");
}

#[test]
fn throttled_data_arrives_slowly_and_complete() {
    let (_echo, wire, mut stream) = start();
    let clock = Clock::system();
    wire.throttle(1000);
    let sent = clock.now();
    send(&mut stream, &"x".repeat(200));
    receives(&mut stream, &"x".repeat(200));
    assert!(clock.now().since(sent) >= Duration::from_millis(190));
    wire.throttle(1);
    send(&mut stream, &"y".repeat(10_000));
    receives_nothing(&mut stream);
    wire.heal();
    receives(&mut stream, &"y".repeat(10_000));
}

#[test]
fn a_stranded_connection_delivers_up_to_the_named_request() {
    let (echo, wire, mut stream) = start();
    let sent_before = "first".len();
    wire.strand(b"second");
    for text in ["second", "third"] {
        send(&mut stream, text);
        receives_nothing(&mut stream);
    }
    drop(stream);
    let mut other = client(&wire);
    send(&mut other, "other");
    receives(&mut other, "other");
    echo.has_received(sent_before + "other".len());
    assert_eq!(wire.delivered(), 0);
    wire.heal();
    wait::block_until("the request is delivered", || wire.delivered() == 1);
    send(&mut other, "last");
    receives(&mut other, "last");
    echo.has_received(sent_before + "othersecondlast".len());
}

#[test]
fn a_cut_wire_closes_old_connections_and_new_ones() {
    let (_echo, wire, mut stream) = start();
    wire.cut();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    assert!(matches!(client(&wire).read(&mut [0; 8]), Ok(0) | Err(_)));
    wait::block_until("no connection is left", || wire.connections() == 0);
    wire.heal();
    let mut stream = client(&wire);
    send(&mut stream, "again");
    receives(&mut stream, "again");
}

#[test]
fn a_blackhole_delivers_nothing_until_it_is_healed() {
    let (echo, wire, mut stream) = start();
    wire.blackhole();
    let mut new = client(&wire);
    send(&mut stream, "old");
    send(&mut new, "new");
    receives_nothing(&mut stream);
    receives_nothing(&mut new);
    echo.has_received("first".len());
    wire.heal();
    receives(&mut stream, "old");
    receives(&mut new, "new");
}

#[test]
fn a_blackhole_hides_the_close_of_a_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let wire = Wire::to(listener.local_addr().unwrap().port());
    let mut stream = client(&wire);
    let (server, _) = listener.accept().unwrap();
    wire.blackhole();
    drop(server);
    receives_nothing(&mut stream);
    wire.heal();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn one_way_forwards_only_requests_or_only_replies() {
    let (echo, wire, mut stream) = start();
    wire.one_way(Direction::ToServer);
    send(&mut stream, "request");
    echo.has_received("firstrequest".len());
    receives_nothing(&mut stream);
    wire.one_way(Direction::ToClient);
    receives(&mut stream, "request");
    send(&mut stream, "stuck");
    receives_nothing(&mut stream);
    echo.has_received("firstrequest".len());
    wire.heal();
    receives(&mut stream, "stuck");
}

#[test]
fn a_reset_is_an_error_for_present_connections_only() {
    let (_echo, wire, mut stream) = start();
    wire.reset();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut stream = client(&wire);
    send(&mut stream, "again");
    receives(&mut stream, "again");
}

#[test]
fn a_lost_reply_is_one_to_a_request_that_arrived() {
    let (echo, wire, mut stream) = start();
    wire.lose_reply_to(b"SET");
    send(&mut stream, "GET");
    receives(&mut stream, "GET");
    send(&mut stream, "S");
    receives(&mut stream, "S");
    send(&mut stream, "ET x");
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(wire.replies_lost(), 1);
    echo.has_received("firstGETSET x".len());
    let mut stream = client(&wire);
    send(&mut stream, "SET");
    receives(&mut stream, "SET");
}

#[test]
fn redis_executes_a_request_whose_reply_is_lost() {
    let server = redis::shared();
    let wire = Wire::to(server.port());
    for _ in 0..3 {
        wire.lose_reply_to(b"INCR");
    }
    for done in ["1", "2", "3"] {
        let mut stream = client(&wire);
        send(&mut stream, "PING\r\n");
        receives(&mut stream, "+PONG\r\n");
        send(&mut stream, "INCR redis_executes_a_request_whose_reply_is_lost\r\n");
        assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(server.cli(&["GET", "redis_executes_a_request_whose_reply_is_lost"]), done);
    }
    assert_eq!(wire.replies_lost(), 3);
}

#[test]
fn a_wire_to_nowhere_resets_its_clients() {
    let wire = Wire::to(free_port());
    assert!(matches!(client(&wire).read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn a_client_can_wait_on_the_wire_for_its_server() {
    let port = free_port();
    let wire = Wire::to_late(port);
    let (mut patient, mut impatient) = (client(&wire), client(&wire));
    send(&mut patient, "here");
    send(&mut impatient, "gone");
    wait::block_until("both are on the wire", || wire.connections() == 2);
    drop(impatient);
    wait::block_until("one has left it", || wire.connections() == 1);
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let (mut stream, _) = server.accept().unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
}
