use super::*;

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let new = NewFolder::create(&out, CONVERT).unwrap();
    std::fs::write(new.path().join("file"), "x").unwrap();
    assert!(!out.exists());
    drop(new);
    assert_eq!(entries(dir.path()), 0);

    std::fs::create_dir(&out).unwrap();
    let new = NewFolder::create(&out, CONVERT).unwrap();
    std::fs::write(new.path().join("file"), "x").unwrap();
    new.commit().unwrap();
    assert_eq!(std::fs::read(out.join("file")).unwrap(), b"x");
    assert_eq!(entries(dir.path()), 1);
}

#[test]
fn what_is_resumed_stays_until_it_is_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let resume = || NewFolder::resume(&out, QUANTIZE).unwrap();
    let new = resume();
    std::fs::write(new.temporary().join("beside"), "x").unwrap();
    std::fs::write(new.path().join("old"), "x").unwrap();
    drop(new);
    let new = resume();
    assert_eq!(new.temporary(), dir.path().join(".quantize-out"));
    assert!(new.temporary().join("beside").exists());
    assert_eq!(entries(new.path()), 0);
    new.discard();
    assert_eq!(entries(dir.path()), 0);

    // The result takes its place; what is beside it goes.
    let new = resume();
    std::fs::write(new.temporary().join("beside"), "x").unwrap();
    std::fs::write(new.path().join("file"), "x").unwrap();
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("theirs"), "x").unwrap();
    assert!(new.commit().is_err());
    assert!(
        dir.path().join(".quantize-out/beside").exists(),
        "an error leaves all where it was"
    );
    std::fs::remove_dir_all(&out).unwrap();
    resume().commit().unwrap();
    assert!(out.is_dir() && entries(dir.path()) == 1);
    let e = NewFolder::resume(&dir.path().join("no/such"), QUANTIZE).unwrap_err();
    assert!(
        matches!(&e, Error::Io { path, .. } if path.ends_with("no")),
        "{e}"
    );
}

#[test]
fn the_second_run_to_an_output_learns_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let first = NewFolder::create(&out, CONVERT).unwrap();
    std::fs::write(first.path().join("file"), "x").unwrap();
    let e = NewFolder::create(&out, CONVERT).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    let _other = NewFolder::create(&dir.path().join("other"), CONVERT).unwrap();
    first.commit().unwrap();
    assert!(out.join("file").exists());
}

/// A temporary folder as a killed process leaves it.
fn killed(output: &Path, prefix: &str) -> PathBuf {
    let folder = NewFolder::unfinished(output, prefix).unwrap();
    std::fs::create_dir_all(folder.join(RESULT)).unwrap();
    std::fs::write(folder.join(RESULT).join("half"), "x").unwrap();
    std::fs::write(folder.join(LOCK), "").unwrap();
    folder
}

#[test]
fn what_killed_processes_left_is_removed_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join(name);
    let left = [
        killed(&out("a"), CONVERT),
        killed(&out("b"), DEQUANTIZE),
        killed(&out("done"), QUANTIZE),
        set_aside(&killed(&out("c"), CONVERT)).unwrap(),
        out(".convert-empty"),
    ];
    std::fs::create_dir(&left[4]).unwrap();
    // This one was killed after its result took its place.
    std::fs::rename(left[2].join(RESULT), out("done")).unwrap();
    let foreign = out(".convert-foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("file"), "x").unwrap();
    let used = NewFolder::create(&out("used"), CONVERT).unwrap();
    let resumable = killed(&out("later"), QUANTIZE);
    // The folder of the same output holds nothing of the earlier run.
    let mine = killed(&out("mine"), CONVERT);
    let new = NewFolder::create(&out("mine"), CONVERT).unwrap();
    assert_eq!(entries(new.path()), 0);
    assert_eq!(left.map(|p| p.exists()), [false; 5]);
    for stays in [&foreign, used.path(), &resumable, &mine, &out("done")] {
        assert!(stays.exists(), "{}", stays.display());
    }
}

#[test]
fn a_removal_that_is_cut_short_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let folder = killed(&dir.path().join("a"), CONVERT);
    std::fs::remove_dir_all(folder.join(RESULT)).unwrap();
    sweep(dir.path());
    assert_eq!(entries(dir.path()), 0);
}

#[test]
fn runs_and_sweeps_at_once_disturb_no_run() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let dir = dir.path();
            scope.spawn(move || {
                for i in 0..25 {
                    let out = dir.join(format!("{n}-{i}"));
                    let new = NewFolder::create(&out, CONVERT).unwrap();
                    std::fs::write(new.path().join("file"), "x").unwrap();
                    sweep(dir);
                    new.commit().unwrap();
                    assert!(out.join("file").exists());
                }
            });
        }
    });
    assert_eq!(entries(dir.path()), 100);
}

#[test]
fn what_is_in_the_way_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let in_the_way = [file.as_path(), dir.path()].map(|output| {
        let e = NewFolder::create(output, CONVERT).unwrap_err();
        let name = format!("output {}", output.display());
        tlite_testing::assert_usage(&e, &name, &[]);
        e.to_string().replace(&name, "")
    });
    assert_ne!(
        in_the_way[0], in_the_way[1],
        "a file, and a folder that is not empty"
    );
    let e = NewFolder::create(&dir.path().join("no/such"), CONVERT).unwrap_err();
    assert!(
        matches!(&e, Error::Io { path, .. } if path.ends_with("no")),
        "{e}"
    );

    // Something that comes into the way later is not replaced.
    let out = dir.path().join("out");
    let new = NewFolder::create(&out, CONVERT).unwrap();
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("theirs"), "x").unwrap();
    assert!(new.commit().is_err());
    assert!(out.join("theirs").exists());
    assert_eq!(entries(dir.path()), 2);
}
