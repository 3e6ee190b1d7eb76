//! A password in a URL is never shown.

use crate::sandbox::Sandbox;

const SECRET: &str = "geheim";

#[test]
fn a_password_is_never_printed() {
    let sandbox = Sandbox::new();
    let url = format!("redis://user:{SECRET}@localhost:1/0");
    let bare = format!("{SECRET}@localhost");
    for args in [
        ["run", "--url", &url, "a", "true"].as_slice(),
        &["run", "-v", "--url", &url, "a", "true"],
        &["run", "--url", &bare, "a", "true"],
        &["list", "--url", &url],
        &["show", "a", "--url", &url],
        &["watch", "--url", &url],
        &["break", "a", "--yes", "--url", &url],
        &["list", "a", &url],
        &["show", "a", &url],
        &["hold", "--until-signal", "--url", &url, "a"],
        &["--url", &url, "list"],
        &["--url", &url, "lst"],
        &["--color", "always", "list", "a", &url],
        &["--color", "always", "list", "--url", &url],
        &[&url],
    ] {
        let ran = sandbox.run(args).expect(125);
        let said = ran.stdout() + &ran.stderr();
        assert!(!said.contains(SECRET), "{args:?}: {said}");
    }
}

/// The parser of URLs takes everything before the last `@` for user and password.
#[test]
fn a_password_with_any_character_is_never_printed() {
    let sandbox = Sandbox::new();
    for url in [
        format!("redis://user:pa/ss{SECRET}@localhost:1/0"),
        format!("redis://user:pa'ss{SECRET}@localhost:1/0"),
        format!("redis://user:pa ss{SECRET}@localhost:1/0"),
        format!("redis+sentinel://localhost:1/main?sentinel_password=ab'{SECRET}"),
        format!("redis+sentinel://localhost:1/main?sentinel_password=ab {SECRET}"),
    ] {
        let flag = format!("--flag={url}");
        for args in [
            ["list", "x", &url].as_slice(),
            &["list", &flag],
            &["list", "x", &format!("-{url}")],
            &["run", "-w", &url, "a", "true"],
            &["run", "--url", &url, "a", "true"],
            &["--color", "always", "list", "a", &url],
            &[&url],
        ] {
            let ran = sandbox.run(args).expect(125);
            let said = ran.stdout() + &ran.stderr();
            assert!(!said.contains(SECRET), "{args:?}: {said}");
        }
        for args in [["rights", "--json", "--url", &url].as_slice(), &["rights", "--url", &url]] {
            let ran = sandbox.run(args).expect(0);
            let said = ran.stdout() + &ran.stderr();
            assert!(said.contains("localhost:1") && !said.contains(SECRET), "{args:?}: {said}");
        }
        let ran = sandbox.run(&["doctor", "--url", &url]).expect(1);
        assert!(ran.stdout().contains("the URL, with a password, is "), "{}", ran.stdout());
        assert!(!(ran.stdout() + &ran.stderr()).contains(SECRET), "{}", ran.stdout());
    }
}

#[test]
fn help_does_not_show_what_is_in_the_environment() {
    let sandbox = Sandbox::new();
    for args in [["run", "--help"].as_slice(), &["list", "--help"], &["run", "--bogus"]] {
        let url = format!("redis://user:{SECRET}@localhost");
        let output = sandbox.fencepost(args).env("FENCEPOST_URL", url).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&said).contains(SECRET), "{args:?}");
    }
}

#[test]
fn a_url_file_is_named_and_not_quoted() {
    let sandbox = Sandbox::new();
    sandbox.write("url", &format!("redis://user:{SECRET}@localhost"));
    let mut command = sandbox.fencepost(["list"]);
    let output = command.env_remove("FENCEPOST_URL").env("FENCEPOST_URL_FILE", "url").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(!String::from_utf8_lossy(&output.stderr).contains(SECRET));
}
