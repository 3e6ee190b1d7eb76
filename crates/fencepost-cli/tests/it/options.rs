//! Options that every command has, and what is said about a command line that is wrong.

use crate::sandbox::{Ran, Sandbox};

#[test]
fn the_url_may_be_given_before_or_after_the_command() {
    let sandbox = Sandbox::new();
    let url = format!("sqlite:{}", sandbox.path("other.db").display());
    for args in [
        ["--url", &url, "run", "a", "--", "sh", "-c", "echo $FENCEPOST_BACKEND"].as_slice(),
        &["run", "--url", &url, "a", "--", "sh", "-c", "echo $FENCEPOST_BACKEND"],
        &["run", "a", "--url", &url, "--", "sh", "-c", "echo $FENCEPOST_BACKEND"],
    ] {
        let ran = sandbox.run(args).expect(0);
        assert_eq!(ran.stdout(), format!("{url}\n"), "{args:?}");
    }
    for args in [["--url", &url, "list"].as_slice(), &["list", "--url", &url]] {
        assert_eq!(sandbox.run(args).expect(0).stderr(), format!("scope: this host ({url})\nno locks\n"));
    }
    for args in [
        ["--url", &url, "show", "a"].as_slice(),
        &["--url", &url, "break", "a", "--yes"],
        &["--url", &url, "doctor"],
        &["--url", &url, "rights"],
        &["--url", &url, "hold", "--until-signal", "-n", "a", "--ttl", "0"],
    ] {
        let ran = sandbox.run(args);
        assert!(!ran.stderr().contains("unexpected argument"), "{args:?}: {}", ran.stderr());
    }
    assert!(!sandbox.path("locks.db").exists(), "the variable does not count");
}

#[test]
fn after_the_command_word_global_options_belong_to_the_command() {
    let sandbox = Sandbox::new();
    let given = ["--url", "x", "--color", "y", "--json", "-v"];
    for start in [
        ["run", "a", "--", "echo"].as_slice(),
        &["run", "a", "echo"],
        &["--color", "never", "run", "a", "echo"],
    ] {
        let args: Vec<&str> = start.iter().chain(&given).copied().collect();
        assert_eq!(sandbox.run(&args).expect(0).stdout(), given.join(" ") + "\n", "{args:?}");
    }
}

#[test]
fn a_misspelt_command_or_option_is_125_with_a_suggestion() {
    let sandbox = Sandbox::new();
    for (args, suggestion) in [
        (["lst"].as_slice(), "'list'"),
        (&["hodl", "a"], "'hold'"),
        (&["docter"], "'doctor'"),
        (&["completion", "bash"], "'completions'"),
        (&["show", "a", "--exitcode"], "'--exit-code'"),
        (&["--colour", "never", "list"], "'--color'"),
    ] {
        let ran = sandbox.run(args).expect(125);
        assert!(ran.stderr().starts_with("fencepost: error: "), "{}", ran.stderr());
        assert!(ran.stderr().contains("tip: ") && ran.stderr().contains(suggestion), "{}", ran.stderr());
        assert_eq!(ran.stdout(), "");
    }
}

#[test]
fn the_command_that_a_run_records_is_the_program_alone() {
    let sandbox = Sandbox::new();
    let show = "fencepost show a --json";
    let recorded = |args: &[&str]| {
        let ran = Ran(sandbox.on_path("fencepost").args(args).output().unwrap()).expect(0);
        let lock: serde_json::Value = serde_json::from_str(&ran.stdout()).unwrap();
        assert!(!ran.stdout().contains("geheim"), "{}", ran.stdout());
        lock["holders"][0]["meta"]["command"].as_str().unwrap().to_owned()
    };
    assert_eq!(recorded(&["run", "a", "--", "sh", "-c", show, "geheim"]), "sh");
    assert_eq!(recorded(&["run", "a", "--", "/bin/sh", "-c", show, "geheim"]), "/bin/sh");
    assert_eq!(recorded(&["run", "a", "-c", &format!("{show}; : geheim")]), "sh");
    assert_eq!(recorded(&["run", "--meta", "command=nightly", "a", "-c", show]), "nightly");
}

#[test]
fn rights_have_a_json_form() {
    let sandbox = Sandbox::new();
    let text = sandbox.run(&["rights"]).expect(0).stdout();
    let json: serde_json::Value =
        serde_json::from_str(&sandbox.run(&["rights", "--json"]).expect(0).stdout()).unwrap();
    assert_eq!((&json["url"], &json["rights"]), (&sandbox.url().into(), &text.into()));
    let secret = sandbox.run(&["rights", "--json", "--url", "redis://u:geheim@localhost"]).expect(0);
    assert!(!secret.stdout().contains("geheim"), "{}", secret.stdout());
}
