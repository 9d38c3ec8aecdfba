//! Output folders that appear whole or not at all.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// A temporary folder that takes the place of the output folder when it is complete. Dropped before
/// [`NewFolder::commit`], it is removed with all that it holds, unless it is one to resume.
#[derive(Debug)]
pub struct NewFolder {
    output: PathBuf,
    replace: bool,
    temporary: Temporary,
}

#[derive(Debug)]
enum Temporary {
    Fresh(tempfile::TempDir),
    Resumed(PathBuf),
}

impl NewFolder {
    /// Makes an empty temporary folder beside `output`, whose name starts with `prefix`.
    ///
    /// `output` must not exist or be an empty folder, and the folder that is to hold it must exist. Errors:
    /// something in the way ([`Error::is_usage`]); a folder that cannot be made.
    pub fn create(output: &Path, prefix: &str) -> Result<Self> {
        let replace = check(output)?;
        let parent = parent(output);
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o777));
        }
        let temporary = builder
            .tempdir_in(parent)
            .map_err(|e| Error::io("cannot make a folder in", parent, e))?;
        Ok(Self {
            output: output.to_owned(),
            replace,
            temporary: Temporary::Fresh(temporary),
        })
    }

    /// As [`NewFolder::create`], but the folder's name is `prefix` and that of the output: what an earlier run left there is found again. It
    /// stays when this is dropped; see [`NewFolder::discard`].
    pub fn resume(output: &Path, prefix: &str) -> Result<Self> {
        let replace = check(output)?;
        let temporary = Self::resumed(output, prefix).ok_or_else(|| {
            let option = format!("output {}", output.display());
            Error::usage(option, "has no name; give one of a folder")
        })?;
        match std::fs::create_dir(&temporary) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::io("cannot make a folder in", parent(output), e))
            }
            _ => Ok(Self {
                output: output.to_owned(),
                replace,
                temporary: Temporary::Resumed(temporary),
            }),
        }
    }

    /// The temporary folder of [`NewFolder::resume`]; `None` where `output` has no name.
    pub fn resumed(output: &Path, prefix: &str) -> Option<PathBuf> {
        let mut temporary = std::ffi::OsString::from(prefix);
        temporary.push(output.file_name()?);
        Some(output.with_file_name(temporary))
    }

    /// The temporary folder.
    pub fn path(&self) -> &Path {
        match &self.temporary {
            Temporary::Fresh(t) => t.path(),
            Temporary::Resumed(path) => path,
        }
    }

    /// Another name for the output, in the same folder as before. Errors as of [`NewFolder::create`].
    pub fn rename_output(&mut self, output: PathBuf) -> Result<()> {
        self.replace = check(&output)?;
        self.output = output;
        Ok(())
    }

    /// Removes the temporary folder with all that it holds.
    pub fn discard(self) -> Result<()> {
        let path = self.path();
        std::fs::remove_dir_all(path).map_err(|e| Error::io("cannot remove", path, e))
    }

    /// Makes an empty folder `name` in the temporary one, in place of one that an earlier run left there; see [`NewFolder::commit_part`].
    pub fn empty_part(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", &path, e));
            }
            _ => {}
        }
        std::fs::create_dir(&path).map_err(|e| Error::io("cannot make", &path, e))?;
        Ok(path)
    }

    /// Gives the folder the output's name, once its list of files is on the disk. After an error it stays where it was.
    pub fn commit(self) -> Result<()> {
        self.take_place(self.path())?;
        if let Temporary::Fresh(temporary) = self.temporary {
            // The folder has moved away: there is nothing left to delete.
            let _moved = temporary.keep();
        }
        Ok(())
    }

    /// Gives the folder `name` in the temporary one the output's name, as [`NewFolder::commit`] does; then removes the rest.
    pub fn commit_part(self, name: &str) -> Result<()> {
        self.take_place(&self.path().join(name))?;
        self.discard()
    }

    fn take_place(&self, folder: &Path) -> Result<()> {
        synced(folder)?;
        if self.replace {
            std::fs::remove_dir(&self.output).map_err(|e| Error::io("cannot replace", &self.output, e))?;
        }
        std::fs::rename(folder, &self.output)
            .map_err(|e| Error::io("cannot move the result to", &self.output, e))?;
        synced(parent(&self.output))
    }
}

/// The folder that holds `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Waits until the list of files of a folder is on the disk, where a system can be asked for that.
fn synced(folder: &Path) -> Result<()> {
    #[cfg(unix)]
    std::fs::File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|e| Error::io("cannot write", folder, e))?;
    let _ = folder;
    Ok(())
}

/// True when an empty folder has to be replaced; an error when anything else is in the way.
fn check(output: &Path) -> Result<bool> {
    let in_the_way = |what: &str| {
        Err(Error::usage(
            format!("output {}", output.display()),
            format!("{what}; give a folder that does not exist yet or is empty"),
        ))
    };
    match std::fs::symlink_metadata(output) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("cannot read", output, e)),
        Ok(meta) if !meta.is_dir() => in_the_way("exists and is not a folder"),
        Ok(_) => {
            let mut entries = std::fs::read_dir(output).map_err(|e| Error::io("cannot read", output, e))?;
            if entries.next().is_some() {
                in_the_way("the folder is not empty")
            } else {
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert!(e.to_string().contains("cannot make a folder in"), "{e}");
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for (output, words) in [(file.as_path(), "not a folder"), (dir.path(), "not empty")] {
            let e = NewFolder::create(output, ".new-").unwrap_err();
            assert!(e.is_usage() && e.to_string().contains(words), "{e}");
        }
        let e = NewFolder::create(&dir.path().join("no/such"), ".new-").unwrap_err();
        assert!(
            !e.is_usage() && e.to_string().contains("cannot make a folder in"),
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
}
