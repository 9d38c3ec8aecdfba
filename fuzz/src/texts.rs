//! Text formats: tokenizers, templates, configurations, grammars, shapes.

use crate::work::{folder, put, split};
use std::sync::OnceLock;
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::llm::constraint::Constraint;
use transformer_lite::unstable::llm::{ChatTemplate, Grammar, Message, ModelFolder, Tokenizer};
use transformer_lite::unstable::shape::{Bindings, Constraints, Dim};

/// Loads a tokenizer, encodes and decodes.
pub fn tokenizer(data: &[u8]) {
    put("tokenizer.json", data);
    let Ok(tokenizer) = Tokenizer::load(folder()) else {
        return;
    };
    for text in ["Hello, world é 😀 <s> 123", "", "a\u{0}b \u{2581}x"] {
        let Ok(ids) = tokenizer.encode(text, true) else {
            continue;
        };
        let _ = tokenizer.decode(&ids);
        let mut stream = tokenizer.stream();
        for id in &ids {
            let _ = stream.push(*id);
        }
        let _ = stream.finish();
    }
    let _ = tokenizer.start();
    tokenizer.tokens().take(500).count();
}

/// Renders a conversation with tools.
pub fn template(data: &[u8]) {
    put("chat_template.jinja", data);
    let Ok(folder) = ModelFolder::open(folder()) else {
        return;
    };
    let Ok(template) = ChatTemplate::load(&folder) else {
        return;
    };
    let messages = [
        Message::system("Be brief."),
        Message::user("Hi {{x}}"),
        Message::assistant("yes"),
        Message::tool("f", "{\"a\":1}"),
    ];
    let parameters = serde_json::json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let function = serde_json::json!({"name": "f", "description": "d", "parameters": parameters});
    let tools = serde_json::json!([{"type": "function", "function": function}]);
    let values = [("tools", tools), ("enable_thinking", false.into())];
    let values = values.map(|(name, value)| (name.to_owned(), value));
    let _ = template.render(&messages, &values.into_iter().collect(), true, &Cancel::default());
}

/// Reads the configurations of a model folder: `config.json`, four zero bytes,
/// `tokenizer_config.json`, four zero bytes, `generation_config.json`.
pub fn config(data: &[u8]) {
    let (config, rest) = split(data);
    let (tokenizer, generation) = split(rest.unwrap_or(b"{}"));
    put("config.json", config);
    put("tokenizer_config.json", tokenizer);
    put("generation_config.json", generation.unwrap_or(b"{}"));
    if let Ok(folder) = ModelFolder::open(folder()) {
        folder.config.window();
        folder.generation.sampling();
        let _ = folder.context(None);
    }
}

/// A tokenizer of all bytes, with the end token 257.
fn bytes() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        put("tokenizer.json", include_bytes!("byte_tokenizer.json"));
        Tokenizer::load(folder()).expect("the tokenizer is valid")
    })
}

/// Follows a grammar for some tokens.
fn follow(grammar: Result<Grammar>, choice: usize) {
    let Ok(mut grammar) = grammar else { return };
    let mut logits = [0.0; 258];
    for i in 0..24 {
        logits.fill(0.0);
        if grammar.mask(&mut logits).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..257).filter(|id| logits[*id as usize] == 0.0).collect();
        let Some(token) = allowed.get((i * 31 + choice) % allowed.len().max(1)) else {
            return;
        };
        if grammar.accept(*token).is_err() || grammar.is_complete() {
            return;
        }
    }
}

/// Follows a JSON schema.
pub fn schema(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        follow(Grammar::json_schema(text, bytes(), &[257]), data.len());
    }
}

/// Follows a Lark grammar.
pub fn lark(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        follow(Grammar::lark(text, bytes(), &[257]), data.len());
    }
}

/// Parses an expression of sizes, and relations between them.
pub fn dim(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let threes = |symbols: &mut dyn Iterator<Item = _>| {
        let mut bindings = Bindings::new();
        for symbol in symbols {
            bindings.set(&symbol, 3);
        }
        bindings
    };
    if let Ok(dim) = Dim::parse(text) {
        let mut symbols = Default::default();
        dim.symbols(&mut symbols);
        let _ = dim.eval(&threes(&mut symbols.into_iter()));
        let shown = dim.to_string();
        if let Ok(again) = Dim::parse(&shown) {
            assert_eq!(again, dim, "{text:?} is shown as {shown:?}");
        }
    }
    if let Ok(constraints) = Constraints::parse(text) {
        let _ = constraints.check(&threes(&mut constraints.symbols().into_iter()));
        let _ = constraints.complete(&Bindings::new());
    }
}
