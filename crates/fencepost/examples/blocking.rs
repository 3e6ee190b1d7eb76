//! The same invoice without async: threads that take turns.
//!
//! Run it twice at once: `cargo run -p fencepost --features sqlite --example blocking`.

use std::thread;
use std::time::Duration;

fn main() -> fencepost::Result<()> {
    let client = fencepost::blocking::connect("sqlite:")?;
    let lock = client.lock("invoice/42").ttl(Duration::from_secs(10));

    let workers: Vec<_> = (1..=3)
        .map(|worker| {
            thread::spawn({
                let lock = lock.clone();
                move || {
                    lock.run(|guard| {
                        // A thread cannot be cancelled: it asks before every effect, and sends the token along.
                        guard.check()?;
                        println!("worker {worker} charges invoice 42 under token {}", guard.token());
                        fencepost::Result::Ok(())
                    })?
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker panics")?;
    }
    client.close();
    Ok(())
}
