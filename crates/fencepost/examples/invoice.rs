//! Two workers, one invoice: the lock makes them take turns, and the ledger checks the token.
//!
//! Run it twice at once: `cargo run -p fencepost --features sqlite --example invoice`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> fencepost::Result<()> {
    let client = fencepost::connect("sqlite:").await?;
    let lock = client.lock("invoice/42").ttl(std::time::Duration::from_secs(10));

    let charged = lock
        .run(async |guard| {
            println!("charging invoice 42 under token {}", guard.token());
            // Send the token along: the ledger refuses a smaller one than it has seen.
            guard.token()
        })
        .await?;
    println!("done with token {charged}");
    client.close().await;
    Ok(())
}
