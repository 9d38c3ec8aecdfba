use super::*;

fn key(text: &str) -> Key {
    let [device, driver, subject] = ["d", "v 1", "k"].map(str::to_owned);
    Key {
        device,
        driver,
        subject,
        text: text.to_owned(),
    }
}

fn only(store: &Store) -> PathBuf {
    let entries = store.entries().unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].path.clone()
}

#[test]
fn what_was_put_is_found_by_its_whole_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("a/b"), DEFAULT_LIMIT);
    assert_eq!(store.get(Kind::Program, &key("x")), None);
    assert!(store.entries().unwrap().is_empty(), "no folder is no files");
    store.put(Kind::Program, &key("x"), b"one");
    store.put(Kind::Program, &key("y"), b"two");
    store.put(Kind::Pipeline, &key("x"), b"three");
    store.put(Kind::Program, &key("x"), b"four");
    let get = |kind, text| store.get(kind, &key(text));
    assert_eq!(get(Kind::Program, "x").as_deref(), Some(&b"four"[..]));
    assert_eq!(get(Kind::Program, "y").as_deref(), Some(&b"two"[..]));
    assert_eq!(get(Kind::Pipeline, "x").as_deref(), Some(&b"three"[..]));
    let mut other = key("x");
    other.driver.push('1');
    assert_eq!(store.get(Kind::Program, &other), None);
    store.remove(Kind::Program, &key("x"));
    assert_eq!(get(Kind::Program, "x"), None);
    assert_eq!(store.clear(Some(Kind::Pipeline)).unwrap().0, 1);
    assert_eq!(store.entries().unwrap().len(), 1);
    assert_eq!(
        only(&store),
        store.path(Kind::Program, &store.bytes_of(&key("y")).unwrap())
    );
    assert_eq!(store.clear(None).unwrap().0, 1);
}

#[test]
fn the_name_alone_proves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().to_owned(), DEFAULT_LIMIT);
    store.put(Kind::Program, &key("x"), b"one");
    let y = store.path(Kind::Program, &store.bytes_of(&key("y")).unwrap());
    std::fs::rename(only(&store), &y).unwrap();
    assert_eq!(store.get(Kind::Program, &key("y")), None);
    assert!(y.exists(), "whole, though not what was asked for");
    store.put(Kind::Program, &key("y"), b"two");
    assert_eq!(store.get(Kind::Program, &key("y")).as_deref(), Some(&b"two"[..]));
}

#[test]
fn damaged_files_are_removed_and_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().to_owned(), 1 << 20);
    let foreign = folder.path().join("notes.txt");
    std::fs::write(&foreign, "mine").unwrap();
    let damages: [fn(&mut Vec<u8>); 5] = [
        |b| *b.last_mut().unwrap() ^= 1,
        |b| b.truncate(b.len() - 1),
        Vec::clear,
        |b| *b = b"something else, longer than a header is".to_vec(),
        |b| b.resize(2 << 20, 0),
    ];
    for damage in damages {
        store.put(Kind::Program, &key("x"), b"contents");
        let path = only(&store);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        assert!(store.entries().unwrap()[0].key.is_none());
        assert_eq!(store.get(Kind::Program, &key("x")), None);
        assert!(!path.exists());
    }
    assert_eq!(store.clear(None).unwrap(), (0, 0));
    assert!(foreign.exists());
}

#[test]
fn where_one_file_is_damaged_all_that_are_go_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().to_owned(), 1 << 20);
    for name in ["a", "b", "c"] {
        store.put(Kind::Program, &key(name), b"contents");
    }
    let entries = store.entries().unwrap();
    let damaged = entries
        .iter()
        .filter(|e| e.key.as_ref().is_some_and(|k| *k != key("c")));
    for entry in damaged {
        std::fs::write(&entry.path, "half").unwrap();
    }
    assert_eq!(store.get(Kind::Program, &key("a")), None);
    let left: Vec<_> = store.entries().unwrap().into_iter().map(|e| e.key).collect();
    assert_eq!(left, [Some(key("c"))]);
    assert_eq!(store.get(Kind::Program, &key("c")).unwrap(), b"contents");
}

#[test]
fn a_folder_that_cannot_be_used_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    // A file where the folder should be, which stops even those who may write everywhere.
    for place in [file.clone(), file.join("below")] {
        let store = Store::new(place, DEFAULT_LIMIT);
        store.put(Kind::Program, &key("x"), b"one");
        assert_eq!(store.get(Kind::Program, &key("x")), None);
        assert!(store.warned.load(Ordering::Relaxed));
        store.remove(Kind::Program, &key("x"));
    }
    // A folder where a file should be.
    let store = Store::new(folder.path().to_owned(), DEFAULT_LIMIT);
    store.put(Kind::Program, &key("x"), b"one");
    let path = only(&store);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    store.put(Kind::Program, &key("x"), b"one");
    assert_eq!(store.get(Kind::Program, &key("x")), None);
    assert!(store.entries().unwrap().is_empty());
}

#[test]
fn beyond_the_limit_the_longest_unused_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().to_owned(), 4000);
    let old = SystemTime::now() - 30 * DAY;
    for (text, days) in [("a", 2), ("b", 1), ("c", 3)] {
        store.put(Kind::Program, &key(text), &[0; 1000]);
        let path = store.path(Kind::Program, &store.bytes_of(&key(text)).unwrap());
        File::open(path).unwrap().set_modified(old + days * DAY).unwrap();
    }
    // A use counts.
    assert!(store.get(Kind::Program, &key("b")).is_some());
    store.put(Kind::Program, &key("d"), &[0; 1000]);
    let there = |text| {
        store
            .path(Kind::Program, &store.bytes_of(&key(text)).unwrap())
            .exists()
    };
    assert_eq!(["a", "b", "c", "d"].map(there), [false, true, true, true]);
    let total: u64 = store.entries().unwrap().iter().map(|e| e.bytes).sum();
    assert!(total <= 4000, "{total}");
    assert_eq!(*store.size.lock().unwrap(), Some(total));
}

#[test]
fn writers_at_once_leave_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let texts = ["a", "b", "c"];
    std::thread::scope(|scope| {
        for n in 0..4u8 {
            let store = Store::new(folder.path().to_owned(), DEFAULT_LIMIT);
            scope.spawn(move || {
                for _ in 0..50 {
                    for text in texts {
                        store.put(Kind::Program, &key(text), &vec![n; 10_000]);
                        let found = store.get(Kind::Program, &key(text)).unwrap();
                        assert!(found.len() == 10_000 && found.iter().all(|b| *b == found[0]));
                    }
                }
                assert!(!store.warned.load(Ordering::Relaxed));
            });
        }
    });
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 3, "no temporary file is left");
}

#[cfg(unix)]
#[test]
fn a_folder_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("cache");
    let open = || Store::new(place.clone(), DEFAULT_LIMIT);
    open().put(Kind::Program, &key("x"), b"one");
    let mode = |mode| std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode)).unwrap();
    for (bits, own) in [
        (0o700, true),
        (0o755, true),
        (0o770, false),
        (0o777, false),
        (0o1777, false),
    ] {
        mode(bits);
        let store = open();
        store.put(Kind::Program, &key("y"), b"two");
        let found = [
            store.get(Kind::Program, &key("x")),
            store.get(Kind::Program, &key("y")),
        ];
        assert_eq!(found.map(|f| f.is_some()), [own; 2], "mode {bits:o}");
        assert_eq!(store.warned.load(Ordering::Relaxed), !own, "mode {bits:o}");
        // It can be looked at and cleared.
        assert_eq!(store.entries().unwrap().len(), if own { 2 } else { 1 });
        mode(0o700);
        open().remove(Kind::Program, &key("y"));
    }
}

#[cfg(unix)]
#[test]
fn a_folder_of_somebody_else_is_not_used() {
    // The root's for users, and for the root what is made over to another.
    let folder = tempfile::tempdir().unwrap();
    let theirs = if std::os::unix::fs::chown(folder.path(), Some(12_345), None).is_ok() {
        folder.path()
    } else {
        Path::new("/usr")
    };
    let store = Store::new(theirs.to_owned(), DEFAULT_LIMIT);
    store.put(Kind::Program, &key("x"), b"one");
    assert_eq!(store.get(Kind::Program, &key("x")), None);
    assert!(store.warned.load(Ordering::Relaxed));
    assert!(store.entries().unwrap().is_empty());
}
