//! Downloads from a server that speaks the hub's protocol, on this machine.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tlite_testing::gguf::{Traits, tiny};
use tlite_testing::hugging_face::{Order, gptq};
use tlite_testing::{TWO_TOKENS, failed_in_a_line};
use transformer_lite_convert::models::FOLDER_VARIABLE;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPO: &str = "owner/repo";
const FILE: &str = "tiny-Q8_0.gguf";
/// Where nobody listens.
const NOBODY: &str = "127.0.0.1:1";

/// What goes wrong with a request.
#[derive(Clone)]
enum Fault {
    /// This status, with these headers.
    Status(u16, &'static str),
    /// The connection ends after so many bytes of the content.
    Cut(usize),
    /// One byte is another.
    Corrupt,
    /// The whole content, though a part was asked for.
    Whole,
}

#[derive(Default)]
struct State {
    /// Content of the files by name.
    files: HashMap<String, Vec<u8>>,
    /// Faults of requests that hold a text, each for one request.
    faults: Vec<(&'static str, Fault)>,
    /// Method, path, `Range` and `Authorization` of each request.
    log: Vec<String>,
    /// The repository is not there for those without this token.
    token: Option<&'static str>,
}

/// A hub with one repository.
struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

struct Asked {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Some(Asked {
        method,
        path,
        headers,
    })
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

impl Server {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files = files.iter().map(|(n, b)| ((*n).to_owned(), b.clone())).collect();
        let state = Arc::new(Mutex::new(State {
            files,
            ..State::default()
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || answer(&stream, port, &state));
            }
        });
        Self { port, state }
    }

    /// The next request that holds `text` fails like this.
    fn fault(&self, text: &'static str, fault: Fault) {
        self.state.lock().unwrap().faults.push((text, fault));
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

/// Writes an answer; content is only sent for GET.
fn send(mut stream: &TcpStream, asked: &Asked, status: u16, headers: &str, content: &[u8], end: usize) {
    let head = format!(
        "HTTP/1.1 {status} Words\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
        content.len()
    );
    let content = if asked.method == "HEAD" {
        &[]
    } else {
        &content[..end]
    };
    let _gone = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(content));
}

fn answer(stream: &TcpStream, port: u16, state: &Mutex<State>) {
    let Some(asked) = read(stream) else { return };
    let header = |name: &str| asked.headers.get(name).map_or("-", String::as_str);
    let line = format!(
        "{} {} {} {}",
        asked.method,
        asked.path,
        header("range"),
        header("authorization")
    );
    let mut state = state.lock().unwrap();
    let at = state.faults.iter().position(|(text, _)| line.contains(text));
    let fault = at.map(|at| state.faults.remove(at).1);
    state.log.push(line);
    let plain = |status, headers: &str, content: &[u8]| {
        send(stream, &asked, status, headers, content, content.len());
    };
    if let Some(Fault::Status(status, headers)) = fault {
        return plain(status, headers, b"no");
    }
    let allowed = state
        .token
        .is_none_or(|t| header("authorization") == format!("Bearer {t}"));
    if let Some(digest) = asked.path.strip_prefix("/cdn/") {
        return send_part(stream, &asked, &state, digest, fault.as_ref());
    }
    if !allowed {
        return plain(401, "X-Error-Code: RepoNotFound\r\n", b"no");
    }
    if asked.path == format!("/api/models/{REPO}/revision/main") {
        let siblings: Vec<_> = state
            .files
            .keys()
            .map(|n| serde_json::json!({"rfilename": n}))
            .collect();
        let list = serde_json::json!({"sha": COMMIT, "siblings": siblings});
        return plain(
            200,
            "Content-Type: application/json\r\n",
            list.to_string().as_bytes(),
        );
    }
    // As of a repository that was renamed.
    if let Some(rest) = asked.path.strip_prefix("/old/name/") {
        return plain(307, &format!("Location: /{REPO}/{rest}\r\n"), b"");
    }
    let file = asked.path.strip_prefix(&format!("/{REPO}/resolve/"));
    let Some((revision, name)) = file.and_then(|f| f.split_once('/')) else {
        return plain(404, "X-Error-Code: RepoNotFound\r\n", b"no");
    };
    assert!(["main", COMMIT].contains(&revision), "{revision}");
    let commit = format!("X-Repo-Commit: {COMMIT}\r\n");
    match state.files.get(name) {
        None => plain(404, &format!("X-Error-Code: EntryNotFound\r\n{commit}"), b"no"),
        // Large files are elsewhere.
        Some(content) if name.ends_with(".gguf") || name.ends_with(".safetensors") => {
            let digest = sha256(content);
            let headers = format!(
                "{commit}ETag: \"of-the-redirection\"\r\nX-Linked-Etag: \"{digest}\"\r\n\
                 X-Linked-Size: {}\r\nLocation: http://localhost:{port}/cdn/{digest}\r\n",
                content.len()
            );
            plain(302, &headers, b"");
        }
        Some(content) => {
            let headers = format!("{commit}ETag: W/\"{}\"\r\n", &sha256(content)[..40]);
            plain(200, &headers, content);
        }
    }
}

/// Sends the file with this digest, from the byte on that the request names.
fn send_part(stream: &TcpStream, asked: &Asked, state: &State, digest: &str, fault: Option<&Fault>) {
    let content = state.files.values().find(|c| sha256(c) == digest);
    let mut content = content.unwrap().clone();
    if let Some(Fault::Corrupt) = fault {
        content[100] ^= 1;
    }
    let range = asked.headers.get("range");
    let first = range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-'));
    let first: Option<usize> = first.map(|f| f.parse().unwrap());
    let first = first.filter(|_| !matches!(fault, Some(Fault::Whole)));
    let (start, len) = (first.unwrap_or(0), content.len());
    let range = format!("Content-Range: bytes {start}-{}/{len}\r\n", len - 1);
    let (status, range) = first.map_or((200, ""), |_| (206, range.as_str()));
    let part = &content[start..];
    let end = match fault {
        Some(Fault::Cut(end)) => *end,
        _ => part.len(),
    };
    send(stream, asked, status, range, part, end);
}

/// A user with a folder of their own.
struct User {
    dir: tempfile::TempDir,
    endpoint: String,
}

impl User {
    fn new(server: &Server) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            endpoint: format!("http://127.0.0.1:{}", server.port),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = tlite_testing::command();
        command.args(args).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let upper = name.to_ascii_uppercase();
            if upper.starts_with("HF_") || upper.ends_with("_PROXY") || upper.contains("CERT") {
                command.env_remove(name);
            }
        }
        command
            .env("RUST_LOG", tlite_testing::LOG)
            .env("HF_ENDPOINT", &self.endpoint)
            .env("HF_HOME", self.dir.path().join("hf"))
            .env(FOLDER_VARIABLE, self.dir.path().join("models"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and returns both its streams.
    #[track_caller]
    fn runs(&self, args: &[&str]) -> (String, String) {
        succeeded(&self.run(args))
    }

    /// Runs a command that must fail as [`failed_in_a_line`] says.
    #[track_caller]
    fn fails(&self, args: &[&str], variant: &str, values: &[&str]) {
        failed_in_a_line(&self.run(args), 1, variant, values);
    }

    fn repo(&self) -> PathBuf {
        self.dir.path().join("hf/hub/models--owner--repo")
    }

    /// Files that are downloaded or about to be.
    fn blobs(&self) -> Vec<String> {
        let list = std::fs::read_dir(self.repo().join("blobs"));
        let names = list.into_iter().flatten().flatten();
        names
            .map(|item| item.file_name().into_string().unwrap())
            .collect()
    }

    fn has_models(&self) -> bool {
        std::fs::read_dir(self.dir.path().join("models"))
            .is_ok_and(|list| list.flatten().any(|item| item.file_name() != ".locks"))
    }
}

#[track_caller]
fn succeeded(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, notes) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{notes}");
    (out, notes)
}

fn gguf() -> Vec<u8> {
    tiny("llama", Traits::default()).bytes()
}

fn hub() -> (Server, User) {
    let others = [
        "README.md",
        "mmproj-tiny-f16.gguf",
        "tiny-F16.gguf",
        "tiny-Q8_0-00001-of-00002.gguf",
    ];
    let mut files = vec![(FILE, gguf())];
    files.extend(others.map(|name| (name, name.repeat(50).into_bytes())));
    let server = Server::new(&files);
    let user = User::new(&server);
    (server, user)
}

fn spec() -> String {
    format!("{REPO}:{FILE}")
}

#[test]
fn pull_chooses_downloads_and_converts() {
    let (server, user) = hub();
    let (out, notes) = user.runs(&["pull", REPO]);
    assert!(
        out.starts_with("tiny-Q8_0: llama, ") && out.contains("Try: tlite chat tiny-Q8_0"),
        "{out}"
    );
    assert!(notes.contains(&format!("note: downloading {FILE} (")), "{notes}");
    assert!(notes.lines().count() <= 3, "{notes}");
    let log = server.log();
    assert!(
        log[0].starts_with("GET /api/models/owner/repo/revision/main"),
        "{log:?}"
    );
    let cdn = log.iter().filter(|l| l.contains("/cdn/")).count();
    assert_eq!(cdn, 1, "HEAD stops at the other server: {log:?}");

    // The layout of the hub's own library.
    let link = user.repo().join("snapshots").join(COMMIT).join(FILE);
    assert_eq!(std::fs::read(&link).unwrap(), gguf());
    assert_eq!(
        std::fs::canonicalize(&link)
            .unwrap()
            .parent()
            .unwrap()
            .file_name()
            .unwrap(),
        "blobs"
    );
    assert_eq!(
        std::fs::read_to_string(user.repo().join("refs/main")).unwrap(),
        COMMIT
    );
    assert_eq!(user.blobs(), [sha256(&gguf())]);

    // No request from here on.
    for name in ["hf:owner/repo", &format!("hf:{}", spec()), "tiny-Q8_0"] {
        let (_, notes) = user.runs(&[&["generate", name][..], &TWO_TOKENS].concat());
        assert!(
            !notes.contains("converting") && !notes.contains("downloading"),
            "{notes}"
        );
    }
    assert!(server.log().is_empty());

    // A second pull looks for a new version.
    user.runs(&["pull", REPO]);
    let log = server.log();
    assert!(
        !log.is_empty() && log.iter().all(|l| !l.contains("/cdn/")),
        "{log:?}"
    );
    let new = {
        let mut file = tiny("llama", Traits::default());
        file.tensor("output_norm.weight").data[0] ^= 1;
        file.bytes()
    };
    server
        .state
        .lock()
        .unwrap()
        .files
        .insert(FILE.to_owned(), new.clone());
    let (out, _) = user.runs(&["pull", REPO, "--json"]);
    let row: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (row["name"].as_str(), row["key"].as_str()),
        (Some("tiny-Q8_0"), Some(sha256(&new).as_str()))
    );
    let (out, _) = user.runs(&["list"]);
    assert_eq!(out.lines().count(), 3, "the old version is gone: {out}");
}

#[test]
fn first_use_downloads_too() {
    let (server, user) = hub();
    let (_, notes) = user.runs(&[&["generate", "hf:owner/repo"][..], &TWO_TOKENS].concat());
    assert!(
        notes.contains("downloading") && notes.contains("converting"),
        "{notes}"
    );
    assert!(!server.log().is_empty());
}

#[test]
fn checkpoints_are_downloaded_whole() {
    let (_dir, folder) = gptq(4, 32, Order::Plain, false, "llama").0.write();
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|item| {
            (
                item.file_name().into_string().unwrap(),
                std::fs::read(item.path()).unwrap(),
            )
        })
        .collect();
    files.push(("README.md".to_owned(), b"text".to_vec()));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(n, b)| (n.as_str(), b.clone())).collect();
    let server = Server::new(&files);
    let user = User::new(&server);
    let (out, _) = user.runs(&["pull", REPO]);
    assert!(out.starts_with("repo: llama, "), "{out}");
    assert!(server.log().iter().all(|l| !l.contains("README")));
    // From the cache.
    user.runs(&["rm", "repo", "--yes"]);
    let (out, _) = user.runs(&["list"]);
    assert!(out.contains("hf:owner/repo "), "{out}");
    let mut command = user.command(&["inspect", "hf:owner/repo"]);
    succeeded(&command.env("HF_HUB_OFFLINE", "1").output().unwrap());
    assert!(server.log().is_empty());
    user.runs(&["rm", "repo", "--yes"]);
    user.runs(&["rm", "hf:owner/repo", "--yes"]);
    assert!(!user.repo().exists());

    let server = Server::new(&[("config.json", b"{}".to_vec()), ("model.safetensors", Vec::new())]);
    User::new(&server).fails(&["pull", REPO], "NoModel", &[REPO, "tokenizer.json"]);
    let parts = ["a.safetensors", "b.safetensors"].map(|name| (name, Vec::new()));
    let tokenizer = [("tokenizer.json", b"{}".to_vec())];
    let config = |model: &str| {
        let text = format!(r#"{{"model_type": "{model}"}}"#);
        [("config.json", text.into_bytes())]
    };
    // Before any weights are downloaded.
    let cases = [
        ("llama", "NoModel", "model.safetensors.index.json"),
        ("mixtral", "Unsupported", "mixtral"),
    ];
    for (model, variant, value) in cases {
        let server = Server::new(&[&config(model)[..], &tokenizer, &parts].concat());
        User::new(&server).fails(&["pull", REPO], variant, &[value]);
        assert!(
            server.log().iter().all(|l| !l.contains("a.safetensors")),
            "{model}"
        );
    }
    let server = Server::new(&[("README.md", b"text".to_vec())]);
    User::new(&server).fails(&["pull", REPO], "NoModel", &[REPO, "GGUF"]);
}

#[test]
fn split_files_are_pulled_whole() {
    let names = [1, 2].map(|n| format!("tiny-{n:05}-of-00002.gguf"));
    let [first, second] = tiny("llama", Traits::default()).split();
    let server = Server::new(&[(&names[0], first), (&names[1], second)]);
    let (user, first) = (User::new(&server), format!("hf:{REPO}:{}", names[0]));
    let second = format!("{REPO}:{}", names[1]);
    user.fails(&["pull", &second], "NoModel", &["part 2 of 2", &names[0]]);
    let (out, _) = user.runs(&["pull", REPO]);
    assert!(out.starts_with("tiny: llama, "), "{out}");
    user.runs(&["rm", "tiny", "--yes"]);
    user.runs(&["rm", &first, "--yes"]);
    assert!(user.blobs().is_empty());
}

#[test]
fn broken_transfers_go_on_where_they_stopped() {
    let (server, user) = hub();
    server.fault("GET /cdn", Fault::Cut(1000));
    server.fault("GET /cdn", Fault::Cut(500));
    let (_, notes) = user.runs(&["pull", &spec()]);
    assert_eq!(notes.matches("trying again in 0.5 s").count(), 2, "{notes}");
    let ranges: Vec<String> = server
        .log()
        .into_iter()
        .filter(|l| l.starts_with("GET /cdn"))
        .collect();
    let range = |i: usize| ranges[i].split(' ').nth(2).unwrap();
    assert_eq!(
        (range(0), range(1), range(2)),
        ("-", "bytes=1000-", "bytes=1500-")
    );
}

#[test]
fn half_a_file_is_kept_for_the_next_run() {
    let (server, user) = hub();
    server.fault("GET /cdn", Fault::Cut(1000));
    for _ in 0..3 {
        server.fault("GET /cdn", Fault::Cut(0));
    }
    let size = gguf().len().to_string();
    user.fails(&["pull", &spec()], "Broken", &[FILE, "1000", &size]);
    assert_eq!(user.blobs(), [format!("{}.incomplete", sha256(&gguf()))]);
    assert!(!user.has_models());
    server.log();
    user.runs(&["pull", &spec()]);
    let log = server.log();
    assert!(log.iter().any(|l| l.contains("bytes=1000-")), "{log:?}");
    assert_eq!(user.blobs(), [sha256(&gguf())]);
}

#[test]
fn servers_without_ranges_send_all_again() {
    let (server, user) = hub();
    server.fault("GET /cdn", Fault::Cut(1000));
    server.fault("GET /cdn", Fault::Whole);
    user.runs(&["pull", &spec()]);
    assert_eq!(user.blobs(), [sha256(&gguf())]);
}

#[test]
fn a_wrong_checksum_is_an_error() {
    let (server, user) = hub();
    server.fault("GET /cdn", Fault::Corrupt);
    let digest = sha256(&gguf());
    user.fails(&["pull", &spec()], "Checksum", &[FILE, &digest]);
    assert!(user.blobs().is_empty() && !user.has_models(), "nothing is kept");
    user.runs(&["pull", &spec()]);

    // A damaged part of an earlier run is not held against the server.
    let (_server, user) = hub();
    let blobs = user.repo().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{}.incomplete", sha256(&gguf()))), [7; 100]).unwrap();
    user.runs(&["pull", &spec()]);

    // Nor is a damaged file in the cache converted.
    std::fs::write(
        blobs.join(sha256(&gguf())),
        tiny(
            "llama",
            Traits {
                untied: true,
                ..Traits::default()
            },
        )
        .bytes(),
    )
    .unwrap();
    user.runs(&["rm", "tiny-Q8_0", "--yes"]);
    let blob = blobs.join(&digest);
    user.fails(&["pull", &spec()], "Checksum", &[blob.to_str().unwrap()]);
}

#[test]
fn refusals_say_what_to_do() {
    let (server, user) = hub();
    server.state.lock().unwrap().token = Some("secret");
    user.fails(&["pull", REPO], "Denied", &[REPO, "401", "HF_TOKEN"]);
    server.log();
    for name in ["HF_TOKEN", "HF_TOKEN_PATH"] {
        let file = user.dir.path().join("token");
        std::fs::write(&file, "secret\n").unwrap();
        let value = if name == "HF_TOKEN" {
            "secret"
        } else {
            file.to_str().unwrap()
        };
        succeeded(&user.command(&["pull", REPO]).env(name, value).output().unwrap());
    }
    let log = server.log();
    assert!(
        log.iter()
            .all(|l| l.contains("/cdn/") != l.ends_with("Bearer secret")),
        "{log:?}"
    );
    let mut other = user.command(&["pull", REPO]);
    let refused = other.env("HF_TOKEN", "other").output().unwrap();
    failed_in_a_line(&refused, 1, "token: true", &[REPO, "401"]);
    let (server, user) = hub();
    server.fault("HEAD", Fault::Status(403, "X-Error-Code: GatedRepo\r\n"));
    user.fails(&["pull", &spec()], "Denied", &[REPO, "403", "HF_TOKEN"]);
}

#[test]
fn what_is_not_there_is_named() {
    let (_server, user) = hub();
    user.fails(&["pull", "owner/other"], "NoRepository", &["owner/other"]);
    user.fails(&["pull", "owner/other:x.gguf"], "NoRepository", &["owner/other"]);
    let files = ["x.gguf", FILE, "tiny-F16.gguf"];
    user.fails(&["pull", "owner/repo:x.gguf"], "NoFile", &files);
    user.fails(&["pull", "owner/repo:Q6_K"], "NoModel", &["Q6_K", FILE]);
    let outside = user.run(&["pull", "owner/repo:../x"]);
    failed_in_a_line(&outside, 2, "Usage", &["owner/repo:../x", "OWNER/REPO"]);
    assert!(!user.has_models());
}

#[test]
fn repositories_may_move() {
    let (_server, user) = hub();
    user.runs(&["pull", &format!("old/name:{FILE}")]);
}

#[test]
fn a_busy_server_is_asked_again() {
    let (server, user) = hub();
    server.fault("HEAD", Fault::Status(429, "Retry-After: 1\r\n"));
    server.fault("GET /cdn", Fault::Status(503, ""));
    let (_, notes) = user.runs(&["pull", &spec()]);
    assert!(
        notes.contains("status 429") && notes.contains("trying again in 1.0 s"),
        "{notes}"
    );
    assert!(
        notes.contains("status 503") && notes.contains("trying again in 0.5 s"),
        "{notes}"
    );

    server.fault("HEAD", Fault::Status(429, "Retry-After: 300\r\n"));
    user.fails(&["pull", &spec()], "Limited", &["429", "300"]);
}

#[test]
fn a_failing_server_is_given_up() {
    let (server, user) = hub();
    for _ in 0..4 {
        server.fault("GET /api", Fault::Status(500, ""));
    }
    user.fails(&["pull", REPO], "Server", &["127.0.0.1", "500", "4"]);
    assert_eq!(server.log().len(), 4);
}

#[test]
fn without_a_network_downloads_are_used() {
    let (server, mut user) = hub();
    user.runs(&["pull", &spec()]);
    user.runs(&["rm", "tiny-Q8_0", "--yes"]);
    let (out, _) = user.runs(&["list"]);
    assert!(out.contains("hf:owner/repo:tiny-Q8_0.gguf"), "{out}");
    server.log();

    let offline =
        |user: &User, args: &[&str]| user.command(args).env("HF_HUB_OFFLINE", "1").output().unwrap();
    for args in [
        &["inspect", "hf:owner/repo"][..],
        &["pull", REPO],
        &["pull", &spec()],
    ] {
        succeeded(&offline(&user, args));
    }
    let absent = offline(&user, &["pull", "owner/repo:x.gguf"]);
    failed_in_a_line(
        &absent,
        1,
        "NotCached",
        &["hf:owner/repo:x.gguf", "HF_HUB_OFFLINE"],
    );
    assert!(server.log().is_empty());

    user.endpoint = format!("http://{NOBODY}");
    let (_, notes) = user.runs(&["pull", &spec()]);
    assert!(notes.contains(&format!("cannot reach {NOBODY}")), "{notes}");
    user.fails(&["pull", "owner/repo:x.gguf"], "Unreachable", &[NOBODY]);

    let name = format!("hf:{}", spec());
    user.runs(&["rm", "tiny-Q8_0", "--yes"]);
    let (out, _) = user.runs(&["rm", &name, "--yes"]);
    assert!(out.starts_with(&format!("removed {name}")), "{out}");
    assert!(user.blobs().is_empty());
}

#[test]
fn proxies_and_certificates_are_named() {
    let (_server, user) = hub();
    let with = |name, value: &str| {
        let mut command = user.command(&["pull", REPO]);
        command.env(name, value).output().unwrap()
    };
    let refused = with("HTTP_PROXY", &format!("http://{NOBODY}"));
    failed_in_a_line(&refused, 1, "proxy: true", &["HTTP_PROXY"]);
    for (name, value) in [
        ("HTTPS_PROXY", "what://"),
        ("SSL_CERT_FILE", "/no/such"),
        ("HF_ENDPOINT", "hub"),
    ] {
        failed_in_a_line(&with(name, value), 2, "Usage", &[name]);
    }
}

#[test]
fn answers_of_other_servers_are_refused() {
    let (server, user) = hub();
    server.fault("HEAD", Fault::Status(200, ""));
    user.fails(&["pull", &spec()], "Unexpected", &[FILE, "HF_ENDPOINT"]);
    server.fault("GET /api", Fault::Status(200, ""));
    user.fails(&["pull", REPO], "Unexpected", &["HF_ENDPOINT"]);
}
