use super::*;

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let new = NewFolder::create(&out, ".new-").unwrap();
    std::fs::write(new.path().join("file"), "x").unwrap();
    assert!(!out.exists());
    drop(new);
    assert_eq!(entries(dir.path()), 0);

    std::fs::create_dir(&out).unwrap();
    let new = NewFolder::create(&out, ".new-").unwrap();
    std::fs::write(new.path().join("file"), "x").unwrap();
    new.commit().unwrap();
    assert_eq!(std::fs::read(out.join("file")).unwrap(), b"x");
    assert_eq!(entries(dir.path()), 1);
}

#[test]
fn what_is_resumed_stays_until_it_is_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let new = NewFolder::resume(&out, ".new-").unwrap();
    std::fs::write(new.path().join("file"), "x").unwrap();
    drop(new);
    let new = NewFolder::resume(&out, ".new-").unwrap();
    assert_eq!(new.path(), dir.path().join(".new-out"));
    assert!(new.path().join("file").exists());
    new.discard().unwrap();
    assert_eq!(entries(dir.path()), 0);
    let new = NewFolder::resume(&out, ".new-").unwrap();
    new.commit().unwrap();
    assert!(out.is_dir() && entries(dir.path()) == 1);
    std::fs::remove_dir(&out).unwrap();

    // One of its folders takes the place; what is beside it goes.
    let new = NewFolder::resume(&out, ".new-").unwrap();
    std::fs::write(new.path().join("beside"), "x").unwrap();
    let part = new.empty_part("part").unwrap();
    std::fs::write(part.join("old"), "x").unwrap();
    let part = new.empty_part("part").unwrap();
    assert_eq!(entries(&part), 0);
    std::fs::write(part.join("file"), "x").unwrap();
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("theirs"), "x").unwrap();
    assert!(new.commit_part("part").is_err());
    assert!(
        dir.path().join(".new-out/beside").exists(),
        "an error leaves all where it was"
    );
    std::fs::remove_dir_all(&out).unwrap();
    let new = NewFolder::resume(&out, ".new-").unwrap();
    new.commit_part("part").unwrap();
    assert!(out.join("file").exists() && entries(dir.path()) == 1);
    let e = NewFolder::resume(&dir.path().join("no/such"), ".new-").unwrap_err();
    assert!(
        matches!(&e, Error::Io { path, .. } if path.ends_with("no")),
        "{e}"
    );
}

#[test]
fn what_is_in_the_way_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let in_the_way = [file.as_path(), dir.path()].map(|output| {
        let e = NewFolder::create(output, ".new-").unwrap_err();
        let name = format!("output {}", output.display());
        tlite_testing::assert_usage(&e, &name, &[]);
        e.to_string().replace(&name, "")
    });
    assert_ne!(
        in_the_way[0], in_the_way[1],
        "a file, and a folder that is not empty"
    );
    let e = NewFolder::create(&dir.path().join("no/such"), ".new-").unwrap_err();
    assert!(
        matches!(&e, Error::Io { path, .. } if path.ends_with("no")),
        "{e}"
    );

    // Something that comes into the way later is not replaced.
    let out = dir.path().join("out");
    let new = NewFolder::create(&out, ".new-").unwrap();
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("theirs"), "x").unwrap();
    assert!(new.commit().is_err());
    assert!(out.join("theirs").exists());
    assert_eq!(entries(dir.path()), 2);
}
