//! Writes a tiny random language model to a folder that does not exist yet, for programs in C.

use std::path::Path;

fn main() -> Result<(), String> {
    let target = std::env::args()
        .nth(1)
        .ok_or("expected the path of a new folder")?;
    let (_kept, folder) = tlite_testing::speaking_model();
    let target = Path::new(&target);
    std::fs::create_dir_all(target).map_err(|e| e.to_string())?;
    for entry in std::fs::read_dir(folder).map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        std::fs::copy(entry.path(), target.join(entry.file_name())).map_err(|e| e.to_string())?;
    }
    Ok(())
}
