//! What comes from the environment: the URL of the backend, and the name of the user.

use std::process::Command;

use crate::sandbox::{Ran, Sandbox};

fn with(sandbox: &Sandbox, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = sandbox.fencepost(args);
    command
        .env_remove("FENCEPOST_URL")
        .env("HOME", sandbox.path(""))
        .env("XDG_STATE_HOME", sandbox.path("state"));
    Ran(command.envs(variables.iter().copied()).output().unwrap())
}

/// Scenario 72: a secret that was not set must not become a lock that every host has for itself.
#[test]
fn a_url_that_is_set_but_empty_is_rejected() {
    let sandbox = Sandbox::new();
    sandbox.write("empty", "");
    sandbox.write("blank", " \n\t\n");
    for (variable, value, error) in [
        ("FENCEPOST_URL", "", "FENCEPOST_URL is set but empty"),
        ("FENCEPOST_URL", " ", "FENCEPOST_URL is set but empty"),
        ("FENCEPOST_URL_FILE", "", "FENCEPOST_URL_FILE is set but empty"),
        ("FENCEPOST_URL_FILE", "empty", "there is no URL in \"empty\", named by FENCEPOST_URL_FILE"),
        ("FENCEPOST_URL_FILE", "blank", "there is no URL in \"blank\", named by FENCEPOST_URL_FILE"),
    ] {
        for args in [["run", "a", "--", "touch", "ran"].as_slice(), &["list"], &["show", "a"], &["rights"]] {
            let said = with(&sandbox, args, &[(variable, value)]).expect(125).stderr();
            assert!(said.contains(&format!("fencepost: error: {error}")), "{args:?}: {said}");
            assert!(said.contains("hint: ") && said.contains("unset"), "{args:?}: {said}");
        }
        let doctor = with(&sandbox, &["doctor"], &[(variable, value)]).expect(1).stdout();
        assert!(doctor.contains(&format!("problem  configuration: {error}")), "{doctor}");
    }
    assert!(!sandbox.path("ran").exists() && !sandbox.path("state").exists());
    with(&sandbox, &["run", "a", "--", "touch", "ran"], &[]).expect(0);
    assert!(sandbox.path("ran").exists(), "an unset variable means the default");
}

/// A value that was not filled in must not permit locks of one host.
#[test]
fn a_requirement_that_is_set_but_empty_is_rejected() {
    let sandbox = Sandbox::new();
    let error = "FENCEPOST_REQUIRE_SHARED is set but empty";
    for args in [["run", "a", "--", "touch", "ran"].as_slice(), &["list"], &["show", "a"]] {
        let said = with(&sandbox, args, &[("FENCEPOST_REQUIRE_SHARED", "")]).expect(125).stderr();
        assert!(said.contains(&format!("fencepost: error: {error}\nhint: ")), "{args:?}: {said}");
    }
    assert!(!sandbox.path("ran").exists() && !sandbox.path("state").exists());
    with(&sandbox, &["run", "a", "--", "touch", "ran"], &[("FENCEPOST_REQUIRE_SHARED", "no")]).expect(0);
    let doctor = with(&sandbox, &["doctor"], &[("FENCEPOST_REQUIRE_SHARED", "")]).expect(1).stdout();
    assert!(doctor.contains(&format!("problem  scope: {error}")), "{doctor}");
}

#[test]
fn a_misspelt_scheme_is_named_with_the_nearest() {
    let sandbox = Sandbox::new();
    for (url, error) in [
        ("redsi://h", "unknown URL scheme \"redsi\"; did you mean redis://?"),
        ("http://h", "unknown URL scheme \"http\"\n"),
        (
            "redlock://u:geheim@h/db",
            "the backend redlock:// is not available yet\nhint: available are etcd:, ",
        ),
        ("postgers://u:geheim@h/db", "unknown URL scheme \"postgers\"; did you mean postgres://?"),
        ("geheim:x", "the scheme of the backend URL is unknown"),
    ] {
        let said = sandbox.run(&["run", "--url", url, "a", "true"]).expect(125).stderr();
        assert!(said.contains(error) && !said.contains("geheim"), "{url}: {said}");
    }
}

#[test]
fn the_label_has_the_name_of_the_account_without_user() {
    let sandbox = Sandbox::new();
    let id = Command::new("id").arg("-un").output().unwrap();
    let account = String::from_utf8(id.stdout).unwrap();
    let mut command = sandbox.fencepost(["run", "a", "--", "sh", "-c", "echo $FENCEPOST_OWNER_LABEL"]);
    for empty in [false, true] {
        let command = command.env_remove("USER").env_remove("LOGNAME");
        let command = if empty { command.env("USER", "") } else { command };
        let label = Ran(command.output().unwrap()).expect(0).stdout();
        assert!(label.ends_with(&format!(":{account}")), "{label:?} is not of {account:?}");
    }
    let label = Ran(command.env("USER", "somename").output().unwrap()).expect(0).stdout();
    assert!(label.ends_with(":somename\n"), "{label:?}");
}
