//! The command beside `flock(1)` and the plain command, alternating, so that a busy moment affects all alike.

use std::path::Path;
use std::process::{Command, Stdio};

use fencepost::clock::Clock;

use crate::report::{Figure, Report};
use crate::statistics::percentile;
use crate::uncontended::fresh_url;

const ROUNDS: usize = 60;

pub(crate) fn measure(report: &mut Report) {
    let (folder, url) = fresh_url("sqlite");
    let file = folder.path().join("flock");
    let fencepost = std::env::current_exe().expect("this program").with_file_name("fencepost");
    let subjects: [(&str, Vec<&std::ffi::OsStr>); 3] = [
        ("true", vec!["true".as_ref()]),
        ("flock f true", vec!["flock".as_ref(), file.as_os_str(), "true".as_ref()]),
        (
            "fencepost run x -- true",
            vec![
                fencepost.as_os_str(),
                "run".as_ref(),
                "--url".as_ref(),
                url.as_ref(),
                "x".as_ref(),
                "--".as_ref(),
                "true".as_ref(),
            ],
        ),
    ];
    if !Path::new(&fencepost).exists() {
        eprintln!("command: {} is not built; run this through `cargo xtask bench`", fencepost.display());
        return;
    }
    let mut times = vec![Vec::new(); subjects.len()];
    for _ in 0..ROUNDS {
        for ((_, words), times) in subjects.iter().zip(&mut times) {
            times.push(time(words));
        }
    }
    let bare = percentile(&mut times[0].clone(), 0.5);
    for ((subject, _), mut times) in subjects.into_iter().zip(times) {
        let p50 = percentile(&mut times, 0.5);
        let mut add = |metric, value| {
            let (backend, subject) = ("sqlite".to_owned(), subject.to_owned());
            report.add(Figure {
                bench: "command",
                backend,
                subject,
                tasks: 1,
                metric,
                value,
                unit: "ms",
                samples: ROUNDS,
                spread: None,
            });
        };
        add("p50", p50 * 1e3);
        add("p50 over the bare command", (p50 - bare) * 1e3);
    }
}

fn time(words: &[&std::ffi::OsStr]) -> f64 {
    let clock = Clock::system();
    let start = clock.now();
    let status = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).status().expect("it starts");
    assert!(status.success(), "{words:?} failed");
    clock.now().since(start).as_secs_f64()
}
