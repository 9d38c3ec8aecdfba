//! Responses of a hub, from a server on the loopback interface.

use crate::work::{emptied, folder};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use transformer_lite_convert::models::ModelStore;
use transformer_lite_convert::models::hub::Hub;

/// What separates responses in an input.
const SEPARATOR: &[u8] = b"\n~~~\n";

/// Responses that are still to be sent.
type Script = Arc<Mutex<Vec<Vec<u8>>>>;

/// Reads a request and sends the next response; closes the connection if there is none.
fn answer(stream: TcpStream, script: &Script) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let response = script.lock().expect("the server does not panic").pop();
    (&stream).write_all(&response.unwrap_or_default())
}

/// The server's address and its script.
fn server() -> &'static (String, Script) {
    static SERVER: OnceLock<(String, Script)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface can be used");
        let address = listener.local_addr().expect("a bound listener has an address");
        let script = Script::default();
        let served = script.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &served);
            }
        });
        (format!("http://{address}"), script)
    })
}

/// Whether all links below a folder lead to something within `root`.
fn contained(folder: &Path, root: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return true;
    };
    entries.flatten().all(|entry| {
        let (path, kind) = (entry.path(), entry.file_type());
        if kind.is_ok_and(|k| k.is_dir()) {
            return contained(&path, root);
        }
        // A link to nothing may point anywhere.
        path.canonicalize().is_ok_and(|target| target.starts_with(root))
    })
}

/// Downloads a model from a hub that sends the responses of `data`.
pub fn hub(data: &[u8]) {
    let (endpoint, script) = server();
    let mut responses = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|w| w == SEPARATOR) {
        responses.push(rest[..at].to_vec());
        rest = &rest[at + SEPARATOR.len()..];
    }
    responses.push(rest.to_vec());
    responses.reverse();
    *script.lock().expect("the server does not panic") = responses;
    let cache = emptied("hub");
    let Ok(hub) = Hub::new(endpoint, cache.clone()) else {
        return;
    };
    let hub = hub.without_pauses();
    let models = emptied("models");
    let store = ModelStore::new(models.clone());
    for spec in ["hf:a/b", "hf:a/b:c.gguf"] {
        let spec = spec.parse().expect("a valid name");
        let _ = store.pull(&hub, &spec, true, &mut |_| {});
    }
    for folder in [cache, models] {
        let root = folder.canonicalize().expect("the folder exists");
        assert!(contained(&root, &root), "a link left {}", root.display());
    }
    let entries = std::fs::read_dir(folder()).expect("FUZZ_WORK can be read");
    let names = entries.flatten().map(|e| e.file_name());
    let others: Vec<_> = names.filter(|n| n != "hub" && n != "models").collect();
    assert!(others.is_empty(), "a download left its folder: {others:?}");
}
