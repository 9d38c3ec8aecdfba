//! Continues a text: `cargo run --release --example generate -- FOLDER "Once upon a time"`
use std::io::Write;
use transformer_lite::{GenerateOptions, LoadOptions, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: generate FOLDER PROMPT".into());
    };
    let model = Model::load(folder, &LoadOptions::default())?;
    let mut session = model.session()?;
    for piece in session.generate(&prompt, &GenerateOptions::default())? {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
