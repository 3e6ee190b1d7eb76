//! etcd on the test bench, and what only a server can get wrong.

mod bench;
mod examine;
mod layouts;

use bench::EtcdBench;

fencepost_testkit::behavior_suite!(etcd, EtcdBench::plain);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, EtcdBench::plain);
}
