//! Takes a lock and shows what there is to see of it: spans and events as lines, metrics as Prometheus reads them.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::fmt::format::FmtSpan;

/// Margins near zero are what matters, so there are several buckets below the 20 s of a healthy lease.
const MARGINS: [f64; 6] = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0];

fn install() -> Result<PrometheusHandle, BuildError> {
    tracing_subscriber::fmt().with_span_events(FmtSpan::CLOSE).init();
    let margin = Matcher::Full("fencepost_lock_renew_margin_seconds".into());
    PrometheusBuilder::new().set_buckets_for_metric(margin, &MARGINS)?.install_recorder()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let page = install()?;
    let options = fencepost::Options::new().metrics_names(["invoice/*"]);
    let client = fencepost::connect_with("memory:", options).await?;
    client.lock("invoice/42").run(async |guard| println!("working with token {}", guard.token())).await?;
    client.close().await;
    println!("{}", page.render());
    Ok(())
}
