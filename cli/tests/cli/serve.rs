//! `serve`: where its options come from, who it lets in, what its code lies on, and the files it is
//! deployed with.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::common::Place;
use crate::common::serving::Serving;

/// What --print-config says: value and origin by name.
fn printed(text: &str) -> BTreeMap<String, (String, String)> {
    let set = text.lines().filter(|line| !line.starts_with("# "));
    let parts = |line: &str| {
        let (name, rest) = line.split_once(" = ").expect("a value");
        let (value, origin) = rest.rsplit_once(" # ").expect("an origin");
        (name.to_owned(), (value.to_owned(), origin.to_owned()))
    };
    set.map(parts).collect()
}

fn print(place: &Place, flags: &str, vars: &[(&str, &str)]) -> BTreeMap<String, (String, String)> {
    let done = place.run_with(&format!("serve --print-config {flags}"), vars);
    assert_eq!(done.status, Some(0), "{flags} {vars:?}: {}", done.err);
    printed(&done.out)
}

#[test]
fn flags_come_before_the_environment_before_the_file_before_defaults() {
    let place = Place::new();
    place.write(
        "file.toml",
        r#"models = "in file"
http-port = 1
max-request-mb = 2
keep-going = true
model-control-mode = "poll"
load-model = ["a", "b"]
weights = "bf16"
"#,
    );
    // An option of each kind: by default, in the file, in the environment, as flags.
    let all = [
        (
            "models",
            "",
            r#""in file""#,
            "dir",
            r#""dir""#,
            "d",
            r#""d""#,
        ),
        ("http-port", "8000", "1", "3", "3", "4", "4"),
        ("max-request-mb", "64.0", "2.0", "1e1", "10.0", "0.5", "0.5"),
        (
            "keep-going",
            "false",
            "true",
            "false",
            "false",
            "true",
            "true",
        ),
        (
            "model-control-mode",
            r#""none""#,
            r#""poll""#,
            "explicit",
            r#""explicit""#,
            "none",
            r#""none""#,
        ),
        (
            "load-model",
            "[]",
            r#"["a", "b"]"#,
            "c,d",
            r#"["c", "d"]"#,
            "e",
            r#"["e"]"#,
        ),
        (
            "weights",
            "",
            r#""bf16""#,
            "f16",
            r#""f16""#,
            "int8",
            r#""int8""#,
        ),
    ];
    let by_default = print(&place, "--models m", &[]);
    let in_file = print(&place, "--config file.toml", &[]);
    for (name, default, file, var, in_var, flag, by_flag) in all {
        let variable = format!("LAZYBATCH_{}", name.replace('-', "_").to_uppercase());
        let is = |printed: &BTreeMap<String, (String, String)>, value: &str, origin: &str| {
            let want = (value.to_owned(), origin.to_owned());
            assert_eq!(printed.get(name), Some(&want), "{name}");
        };
        match name {
            "models" => is(&by_default, r#""m""#, "--models"),
            "weights" => assert!(!by_default.contains_key(name)),
            _ => is(&by_default, default, "default"),
        }
        is(&in_file, file, "file.toml");
        let set = [(variable.as_str(), var)];
        is(
            &print(&place, "--config file.toml", &set),
            in_var,
            &variable,
        );
        let flags = format!("--config file.toml --{name}={flag}");
        is(&print(&place, &flags, &set), by_flag, &format!("--{name}"));
    }
    // Others keep theirs.
    let one = print(&place, "--config file.toml --http-port 9", &[]);
    assert_eq!(one["max-request-mb"].1, "file.toml");
    // A list replaces a list, a flag can be switched off, and an empty variable is none.
    let flags = "--config file.toml --load-model x --load-model y --keep-going=false";
    let one = print(&place, flags, &[("LAZYBATCH_HTTP_PORT", "")]);
    assert_eq!(one["load-model"].0, r#"["x", "y"]"#);
    assert_eq!(one["keep-going"].0, "false");
    assert_eq!(one["http-port"].1, "file.toml");
    let one = print(&place, "", &[("LAZYBATCH_CONFIG", "file.toml")]);
    assert_eq!(one["models"], (r#""in file""#.into(), "file.toml".into()));
}

#[test]
fn what_is_printed_can_be_read_again() {
    let place = Place::new();
    let flags = "--models m --policy lazy --load-model a --load-model b --threads 2 --keep-going";
    let first = place.succeed(&format!("serve --print-config {flags}"));
    place.write("again.toml", first.out.as_bytes());
    let again = print(&place, "--config again.toml", &[]);
    let values = |of: BTreeMap<String, (String, String)>| -> BTreeMap<_, _> {
        of.into_iter()
            .map(|(name, (value, _))| (name, value))
            .collect()
    };
    assert_eq!(values(printed(&first.out)), values(again));
}

#[test]
fn what_is_wrong_in_the_file_or_the_environment_is_named() {
    let place = Place::new();
    for (text, parts) in [
        (
            "models = \"m\"\n  http-prot = 1",
            &["f.toml:2:3: expected the name of an option of serve, got \"http-prot\""][..],
        ),
        ("config = \"x\"", &["f.toml:1:1:", "\"config\""]),
        ("print-config = true", &["f.toml:1:1:", "\"print-config\""]),
        ("[serve]\nmodels = \"m\"", &["f.toml:1:2:", "\"serve\""]),
        (
            "models = \"m\"\nhttp-port = \"80\"",
            &["f.toml:2:13: http-port: expected a whole number, got string \"80\""],
        ),
        (
            "http-port = 1.5",
            &["f.toml:1:13:", "a whole number, got float 1.5"],
        ),
        (
            "drain-secs = true",
            &["drain-secs: expected a number, got boolean true"],
        ),
        (
            "keep-going = 1",
            &["keep-going: expected true or false, got integer 1"],
        ),
        ("models = 5", &["models: expected a string, got integer 5"]),
        (
            "load-model = \"a\"",
            &["load-model: expected an array of strings"],
        ),
        (
            "load-model = [1]",
            &["load-model: expected an array of strings"],
        ),
        (
            "load-model = [\"a,b\"]",
            &["load-model: expected an array of strings without commas"],
        ),
        (
            "http-port = 65536",
            &["f.toml:1:13:", "'65536'", "--http-port"],
        ),
        (
            "drain-secs = -1",
            &["f.toml:1:14:", "expected a number above 0", "got -1"],
        ),
        (
            "model-control-mode = \"all\"",
            &["f.toml:1:22:", "'all'", "none, explicit, poll"],
        ),
        (
            "otlp-sample = 1.5",
            &["f.toml:1:15:", "expected a number from 0 to 1", "got 1.5"],
        ),
        (
            "otlp-endpoint = \"https://collector\"",
            &[
                "f.toml:1:17:",
                "http://HOST:PORT",
                "got 'https://collector'",
            ],
        ),
        (
            "log-format = \"xml\"",
            &["f.toml:1:14:", "'xml'", "text, json"],
        ),
        ("models = ", &["f.toml:1:"]),
        (
            "models = \"a\"\nmodels = \"b\"",
            &["f.toml:2:1: duplicate key"],
        ),
    ] {
        place.write("f.toml", text);
        place.refuse("serve --config f.toml", parts);
    }
    place.refuse(
        "serve --config none.toml",
        &["--config: expected a TOML file, got none.toml"],
    );
    for (variable, value, parts) in [
        ("LAZYBATCH_HTTP_PORT", "x", ["LAZYBATCH_HTTP_PORT: ", "'x'"]),
        (
            "LAZYBATCH_KEEP_GOING",
            "1",
            ["LAZYBATCH_KEEP_GOING: ", "'1'"],
        ),
        (
            "LAZYBATCH_DRAIN_SECS",
            "0",
            ["LAZYBATCH_DRAIN_SECS: ", "got 0"],
        ),
        (
            "LAZYBATCH_HTTP_PROT",
            "9000",
            [
                "environment: expected one of LAZYBATCH_HTTP_PORT as a",
                "got LAZYBATCH_HTTP_PROT",
            ],
        ),
        (
            "LAZYBATCH_LOAD_MODELS",
            "a",
            ["LAZYBATCH_LOAD_MODEL as a", "got LAZYBATCH_LOAD_MODELS"],
        ),
        (
            "LAZYBATCH_PRINT_CONFIG",
            "true",
            [
                "environment: expected the flag --print-config in its place",
                "got LAZYBATCH_PRINT_CONFIG",
            ],
        ),
    ] {
        let done = place.run_with("serve --models m", &[(variable, value)]);
        assert_eq!(done.status, Some(2), "{}", done.err);
        assert!(
            parts.iter().all(|part| done.err.contains(part)),
            "{}",
            done.err
        );
    }
    // Those of other parts of the project, and what a cluster says of its services.
    let others = [
        ("LAZYBATCH_EMULATOR_SEED", "1"),
        ("LAZYBATCH_TRACES", "t"),
        ("LAZYBATCH_SERVICE_PORT_HTTP", "8000"),
        ("LAZYBATCH_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("LAZYBATCH_HTTP_SERVICE_HOST", "10.0.0.1"),
        ("LAZYBATCH_HTTP_PROT", ""),
    ];
    let done = place.run_with("serve --models m --print-config", &others);
    assert_eq!(done.status, Some(0), "{}", done.err);
    place.refuse("serve --http-port 1", &["--models <DIR>"]);
    place.refuse("serve --models m --http-port x", &["'x'"]);
    for device in ["sim", "gpu", "cuda:x"] {
        place.refuse(
            &format!("serve --models m --device {device}"),
            &["--device: expected cpu, cuda or cuda:N, got", device],
        );
    }
    // What is wrong by itself is so where options are only printed; what another one makes so is not.
    for (flags, told) in [
        ("--policy nope", "expected one of serial"),
        ("--device tpu", "expected cpu, cuda or cuda:N"),
    ] {
        for print in ["", "--print-config"] {
            place.refuse(&format!("serve --models m {flags} {print}"), &[told]);
        }
    }
    let all = "--model-control-mode explicit --load-model * --load-model a";
    place.refuse(
        &format!("serve --models m {all}"),
        &["--load-model: expected * alone, or names, got *, a"],
    );
    place.succeed("serve --models m --tls-cert c.pem --print-config");
    place.refuse("serve --models m --tls-cert c.pem", &["--tls-key"]);
    let help = place.succeed("serve --help").out;
    assert!(
        help.contains("LAZYBATCH_HTTP_PORT") && help.contains("--models"),
        "{help}"
    );
}

#[test]
fn sighup_reads_tokens_anew_and_sigterm_ends() {
    let place = Place::new();
    place.write("tokens", "name:first\n");
    let others = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(place.path("tokens"), others).unwrap();
    let mut server = Serving::start(&place, "--token-file tokens");
    let log = place.read("log");
    assert!(log.contains("others than its owner may read"), "{log}");
    assert_eq!(server.get("/v2", "first"), "200");
    assert_eq!(server.get("/v2", "second"), "401");
    assert_eq!(server.get("/v2/health/ready", "none"), "200");
    place.write("tokens", "name:second\n");
    server.signal("-HUP");
    while server.get("/v2", "second") != "200" {}
    assert_eq!(server.get("/v2", "first"), "401");
    place.write("tokens", "no token\n");
    server.signal("-HUP");
    while !place.read("log").contains("tokens stay as they were") {}
    assert_eq!(server.get("/v2", "second"), "200");
    let log = place.read("log");
    assert!(
        !log.contains("second") && !log.contains("no token"),
        "{log}"
    );
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// Bytes and file of each mapping that a server runs code of; the name is empty where there is none.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn code_of(server: &Serving) -> Vec<(usize, String)> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.child.id())).unwrap();
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        let is_code = words.next()?.contains('x');
        let name = words.nth(3).unwrap_or_default();
        is_code.then(|| (address(end) - address(start), name.to_owned()))
    };
    let code: Vec<_> = maps.lines().filter_map(mapping).collect();
    assert!(!code.is_empty(), "{maps}");
    code
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn code_lies_on_huge_pages_unless_it_is_to_stay() {
    let place = Place::new();
    let is_of_a_file = |(_, name): &(usize, String)| !name.is_empty();
    let code = code_of(&Serving::start(&place, "--no-huge-code"));
    assert!(code.iter().all(is_of_a_file), "{code:?}");
    assert!(code.iter().any(|c| c.0 > 4 << 20), "it has huge pages");

    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if enabled.is_ok_and(|text| !text.contains("[never]")) {
        let server = Serving::start(&place, "");
        let code = code_of(&server);
        let moved: Vec<_> = code.iter().filter(|c| !is_of_a_file(c)).collect();
        assert!(moved.iter().any(|c| c.0 >= 2 << 20), "{code:?}");
        assert!(
            moved.iter().all(|c| c.0.is_multiple_of(2 << 20)),
            "{code:?}"
        );
        assert_eq!(server.get("/v2", "none"), "200");
    } else {
        println!("not run: this system has no huge pages for code");
    }
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "what a child gives up, it has to itself")]
fn code_stays_where_nothing_written_may_be_run() {
    use std::os::unix::process::CommandExt;

    // As systemd's `MemoryDenyWriteExecute` has it.
    let deny = || {
        let flags = libc::c_ulong::from(libc::PR_MDWE_REFUSE_EXEC_GAIN);
        // SAFETY: the call takes whole numbers alone.
        match unsafe { libc::prctl(libc::PR_SET_MDWE, flags, 0_usize, 0_usize, 0_usize) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: as above.
    if unsafe { libc::prctl(libc::PR_GET_MDWE, 0_usize, 0_usize, 0_usize, 0_usize) } < 0 {
        println!("not run: this system cannot deny it");
        return;
    }
    let place = Place::new();
    let mut command = Serving::command(&place, "");
    // SAFETY: between fork and exec there is one call of the kernel.
    unsafe { command.pre_exec(deny) };
    let server = Serving::start_by(&place, &mut command);
    let code = code_of(&server);
    assert!(code.iter().all(|(_, name)| !name.is_empty()), "{code:?}");
    assert_eq!(server.get("/v2", "none"), "200");
}

#[test]
fn addresses_that_others_reach_are_refused_unless_secured_or_asked_for() {
    let place = Place::new();
    std::fs::create_dir(place.path("models")).unwrap();
    place.write("tokens", "token\n");
    let open = "serve --models models --http-port 0 --grpc-port 0 --metrics-port 0 --host";
    for host in ["0.0.0.0", "::"] {
        place.refuse(
            &format!("{open} {host}"),
            &[
                host,
                "--tls-cert and --tls-key, and --token-file",
                "--insecure",
            ],
        );
        place.refuse(
            &format!("{open} {host} --token-file tokens"),
            &[host, "needed: --tls-cert and --tls-key is missing"],
        );
    }
    let server = Serving::start(&place, "--host 0.0.0.0 --insecure");
    assert_eq!(server.get("/v2", "any"), "200");
    assert!(place.read("log").contains("WARN"), "{}", place.read("log"));
}

#[test]
fn tls_needs_certificate_and_key_and_files_that_are_there() {
    let place = Place::new();
    std::fs::create_dir(place.path("models")).unwrap();
    let serve = "serve --models models --http-port 0 --grpc-port 0 --metrics-port 0";
    for given in ["--tls-cert", "--tls-key", "--tls-client-ca"] {
        let parts = ["expected --tls-cert and --tls-key, got", given, "alone"];
        place.refuse(&format!("{serve} {given} x"), &parts);
    }
    place.refuse(
        &format!("{serve} --tls-cert x.pem --tls-key y.pem"),
        &["x.pem: expected certificates in PEM"],
    );
    place.refuse(
        &format!("{serve} --token-file tokens"),
        &["tokens: expected a file of tokens"],
    );
}

#[test]
fn log_lines_are_json_on_request_and_a_collector_need_not_be_there() {
    let place = Place::new();
    // Nobody listens at that port of loopback.
    let flags = "--host 0.0.0.0 --insecure --log-format json --otlp-endpoint http://127.0.0.1:9";
    let mut server = Serving::start(&place, flags);
    assert_eq!(server.get("/v2/health/live", "any"), "200");
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let log = place.read("log");
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect(line);
    let lines: Vec<_> = log.lines().map(line).collect();
    let has = |level: &str, message: &str| {
        let is = |line: &&serde_json::Value| line["level"] == level && line["message"] == message;
        let found: Vec<_> = lines.iter().filter(is).collect();
        assert_eq!(found.len(), 1, "{message}: {log}");
        found[0].clone()
    };
    let open = has("WARN", "other machines reach this server");
    assert_eq!(open["address"], "0.0.0.0");
    assert_eq!(open["target"], "lazybatch_serve::security");
    assert_eq!(has("INFO", "draining")["in_flight"], 0);
}

#[test]
fn kinds_of_log_lines_are_switched_on_and_off_while_it_runs() {
    let place = Place::new();
    let model = place.path("models/add/1");
    std::fs::create_dir_all(&model).unwrap();
    let from =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../serve/conformance/models/add.onnx");
    std::fs::copy(from, model.join("model.onnx")).unwrap();
    let flags = "--model-control-mode explicit --no-measure --threads 1 --log-format json";
    let mut server = Serving::start(&place, flags);
    let post = |path: &str, body: &str| {
        let (status, text) = server.post(path, body);
        assert_eq!(status, "200", "{path} {body}: {text}");
    };
    let (load, logging) = ("/v2/repository/models/add/load", "/v2/logging");
    let infer = || {
        let input = |name| {
            let ones = ["1"; 16].join(",");
            format!(r#"{{"name":"{name}","datatype":"FP32","shape":[1,16],"data":[{ones}]}}"#)
        };
        let inputs = format!(r#"{{"inputs":[{},{}]}}"#, input("INPUT0"), input("INPUT1"));
        post("/v2/models/add/infer", &inputs);
    };
    post(load, "");
    infer();
    post(logging, r#"{"log_info":false,"log_verbose_level":1}"#);
    post(load, "");
    infer();
    post(logging, r#"{"log_info":true,"log_verbose_level":0}"#);
    post(load, "");
    infer();
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let log = place.read("log");
    let told = |message: &str| log.lines().filter(|line| line.contains(message)).count();
    assert_eq!(told(r#""message":"loaded""#), 2, "{log}");
    assert_eq!(told(r#""message":"request ended""#), 1, "{log}");
}

/// A file of `serve/deploy`.
fn deployed(name: &str) -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../serve/deploy");
    let path = path.join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Runs a command line of a deployment file, with the example in place of the installed file.
fn runs(place: &Place, words: &[&str]) -> BTreeMap<String, (String, String)> {
    let (example, _) = deployed("lazybatch.toml");
    assert_eq!(words[0], "/usr/bin/lazybatch");
    let installed = |word: &&str| *word == "/etc/lazybatch/lazybatch.toml";
    assert_eq!(
        words.iter().filter(|w| installed(w)).count(),
        1,
        "{words:?}"
    );
    let words = words[1..].iter();
    let mut words: Vec<&str> = words
        .map(|w| {
            if installed(w) {
                example.to_str().unwrap()
            } else {
                w
            }
        })
        .collect();
    words.push("--print-config");
    let done = place.run_args(&words);
    assert_eq!(done.status, Some(0), "{words:?}: {}", done.err);
    printed(&done.out)
}

#[test]
fn the_example_configuration_is_one() {
    let (path, text) = deployed("lazybatch.toml");
    let place = Place::new();
    let all = print(&place, &format!("--config {}", path.display()), &[]);
    let table: toml::Table = text.parse().unwrap();
    assert!(table.len() > 8, "{text}");
    for name in table.keys() {
        assert_eq!(all[name].1, path.display().to_string(), "{name}");
    }
    // What stands there as a comment is right too.
    place.write("f.toml", text.replace("# tls-client-ca", "tls-client-ca"));
    assert_eq!(
        print(&place, "--config f.toml", &[])["tls-client-ca"].1,
        "f.toml"
    );
}

#[test]
fn the_unit_starts_what_is_there_and_waits_for_its_drain() {
    let (_, text) = deployed("lazybatch.service");
    let text = text.replace("\\\n", " ");
    let setting = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let values: Vec<&str> = lines.filter_map(|line| line.strip_prefix('=')).collect();
        assert_eq!(values.len(), 1, "{name}");
        values[0]
    };
    let place = Place::new();
    let words: Vec<&str> = setting("ExecStart").split_whitespace().collect();
    let all = runs(&place, &words);
    let drain: f64 = all["drain-secs"].0.parse().unwrap();
    let stop: f64 = setting("TimeoutStopSec").parse().unwrap();
    // Behind the drain connections have 10 s to close, spans 5 s to be sent, and traces 5 s to be written.
    assert!(stop > drain + 20.0, "{stop} {drain}");
    let (_, image) = deployed("Containerfile");
    assert!(
        image.contains(&format!("podman stop -t {stop})")),
        "{image}"
    );
    assert_eq!(setting("ExecReload"), "/bin/kill -HUP $MAINPID");
    for (option, file) in [
        ("tls-cert", "tls.crt"),
        ("tls-key", "tls.key"),
        ("token-file", "tokens"),
    ] {
        let credential = format!("\"${{CREDENTIALS_DIRECTORY}}/{file}\"");
        assert_eq!(all[option], (credential, format!("--{option}")));
        let loaded = format!("\nLoadCredential={file}:/etc/lazybatch/{file}\n");
        assert!(text.contains(&loaded), "{file}");
    }
    for name in ["DynamicUser", "NoNewPrivileges"] {
        assert_eq!(setting(name), "yes");
    }
    assert_eq!(setting("ProtectSystem"), "strict");
}

#[test]
fn the_image_starts_what_is_there_and_not_as_root() {
    let (_, text) = deployed("Containerfile");
    let list = |name: &str| -> Vec<String> {
        let lines: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(name)).collect();
        assert_eq!(lines.len(), 1, "{name}");
        serde_json::from_str(lines[0]).unwrap()
    };
    let words = [list("ENTRYPOINT "), list("CMD ")].concat();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let all = runs(&Place::new(), &words);
    assert!(text.contains("\nUSER 65532:65532\n"));
    let ports = ["http-port", "grpc-port", "metrics-port"].map(|name| all[name].0.as_str());
    assert!(text.contains(&format!("\nEXPOSE {}\n", ports.join(" "))));
}
