//! Between processes: killed, stopped and taking turns, on one clock.

use fencepost_core::clock::Moment;
use fencepost_core::{FencingToken, LockName, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::dice::Dice;
use fencepost_testkit::history::{Hold, check};
use fencepost_testkit::puppet::Puppet;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actors::{LONG, SHORT, granted, hold, in_line, waiting};
use crate::bench::RedisBench;

/// A turn as a process told of it.
fn read(who: &str, said: &str) -> Hold {
    let words: Vec<u64> = said.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let [token, from, to] = words[..] else { panic!("it said {said:?}") };
    Hold {
        who: who.into(),
        name: LockName::new("a").unwrap(),
        mode: Mode::Exclusive,
        token: FencingToken::new(token),
        from: Moment::from_nanos(from),
        to: Moment::from_nanos(to),
    }
}

/// Four processes take turns; now and then one is killed and replaced, or stopped for longer than its lease. No two
/// of them ever hold the lock at once, and tokens only rise.
#[test]
fn processes_that_die_and_stand_still_never_hold_a_lock_together() {
    const ROUNDS: usize = 12;
    let bench = RedisBench::plain();
    let (mut dice, mut holds) = (Dice::new(7), Vec::new());
    let start = || {
        let mut puppet = Puppet::new(bench.url());
        puppet.say(&format!("turns a {}", SHORT.as_millis() / 2));
        puppet
    };
    let mut puppets: Vec<Puppet> = (0..4).map(|_| start()).collect();
    for round in 0..ROUNDS {
        let at = dice.index(4);
        if round % 3 == 2 {
            puppets[at].stop();
            wait::block_thread_for(SHORT * 6 / 10);
            puppets[at].go_on();
        } else {
            holds.extend(puppets[at].kill().iter().map(|said| read("killed", said)));
            puppets[at] = start();
        }
        let goal = holds.len() + 20;
        wait::block_until("turns are taken", || {
            for (who, puppet) in puppets.iter().enumerate() {
                holds.extend(puppet.heard().iter().map(|said| read(&who.to_string(), said)));
            }
            holds.len() >= goal
        });
    }
    for puppet in &mut puppets {
        holds.extend(puppet.kill().iter().map(|said| read("killed", said)));
    }
    assert!(holds.len() >= ROUNDS * 20);
    check(&holds).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Scenario 51: holder and first waiter are killed together. The ticket of the waiter would live for two minutes.
#[tokio::test]
async fn holder_and_first_waiter_die_together() {
    let bench = RedisBench::plain();
    let client = bench.client().await;
    let (mut holder, mut first) = (Puppet::new(bench.url()), Puppet::new(bench.url()));
    holder.say(&format!("acquire a {}", SHORT.as_millis()));
    let token: u64 = holder.hear("granted").parse().unwrap();
    first.say(&format!("acquire a {}", LONG.as_millis()));
    in_line(&client, "a", 1).await;
    let second = waiting(client.lock("a").ttl(SHORT * 3));
    in_line(&client, "a", 2).await;
    holder.kill();
    first.kill();
    let second = granted(second).await;
    assert!(second.token().get() > token);
    second.release().await.unwrap();
}

/// Scenario 45: what was handed to a stopped process is given back, and never shown.
#[tokio::test]
async fn a_stopped_process_does_not_show_an_old_grant() {
    let bench = RedisBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG)).await;
    let mut stopped = Puppet::new(bench.url());
    stopped.say(&format!("acquire a {}", SHORT.as_millis()));
    in_line(&client, "a", 1).await;
    stopped.stop();
    guard.release().await.unwrap();
    // It was handed over to the stopped process, whose lease must end first.
    let later = hold(&client.lock("a").ttl(LONG)).await;
    stopped.go_on();
    in_line(&client, "a", 1).await;
    assert_eq!(stopped.heard(), Vec::<String>::new(), "it has shown a grant that was over");
    let token = later.token().get();
    later.release().await.unwrap();
    assert!(stopped.hear("granted").parse::<u64>().unwrap() > token);
    stopped.kill();
    assert_clean(&bench).await;
}
