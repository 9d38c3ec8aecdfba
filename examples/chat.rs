//! Chats with a model, one line of standard input per turn:
//! `cargo run --release --example chat -- FOLDER`
use transformer_lite::{Conversation, GenerateOptions, LoadOptions, Message, Model, Sampler, SamplerConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: chat FOLDER")?;
    let mut session = Model::load(folder, &LoadOptions::default())?.session()?;
    session.set_sampler(Sampler::new(SamplerConfig {
        temperature: 0.7,
        ..SamplerConfig::default()
    })?);
    let mut conversation = Conversation::new(session, vec![Message::system("Answer briefly.")]);
    conversation.set_slides(true);
    for line in std::io::stdin().lines() {
        // Each turn feeds only new tokens. When the context is full, the oldest turns are dropped.
        let mut answer = conversation.send(Message::user(line?), &GenerateOptions::default())?;
        println!("{}", answer.text()?);
    }
    Ok(())
}
