//! Converts a GGUF file: `convert_gguf INPUT.gguf OUTPUT_FOLDER`.

use std::path::PathBuf;
use transformer_lite::gguf;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(input), Some(output), None) = (args.next(), args.next(), args.next()) else {
        anyhow::bail!("usage: convert_gguf INPUT.gguf OUTPUT_FOLDER");
    };
    let mut shown = 0;
    let summary = gguf::convert(&input, &output, &mut |p| {
        let percent = p.done * 100 / p.total.max(1);
        if percent >= shown + 10 {
            shown = percent;
            eprintln!("{percent:3} % {}", p.tensor);
        }
    })?;
    println!("{summary:#?}");
    Ok(())
}
