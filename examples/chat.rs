//! A conversation, a line of standard input each turn: `cargo run --release --example chat -- FOLDER`
use transformer_lite::llm::{GenerateOptions, LoadOptions, Message, Model, Sampler, SamplerConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: chat FOLDER")?;
    let model = Model::load(folder, &LoadOptions::default())?;
    let mut session = model.session()?;
    session.set_sampler(Sampler::new(SamplerConfig {
        temperature: 0.7,
        ..SamplerConfig::default()
    })?);
    let mut messages = vec![Message::system("Answer briefly.")];
    for line in std::io::stdin().lines() {
        messages.push(Message::user(line?));
        // Only what is new since the last turn is fed.
        let mut answer = session.generate(&messages, &GenerateOptions::default())?;
        let text = answer.text()?;
        println!("{text}");
        messages.push(Message::assistant(text));
    }
    Ok(())
}
