//! Constrains text to a grammar or a JSON schema. The crate `llguidance`, an Earley parser over the
//! bytes of tokens, decides which tokens may come next.

use super::Tokenizer;
use super::constraint::Constraint;
use super::schema::watch::{self, Watch};
use super::schema::{self, DefaultBound, SchemaOptions};
use crate::error::{Error, ErrorKind, Result, Stage};
use llguidance::api::{GrammarInit, StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser, panic_utils};
use serde_json::Value;
use std::fmt::{self, Display};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

mod gbnf;

/// A grammar for one vocabulary.
pub struct Grammar {
    /// The state at the start of a text.
    fresh: State,
    state: State,
    eos: Vec<u32>,
    /// See [`watch::features`].
    features: Arc<[u8]>,
}

/// The state of a text.
struct State {
    parser: TokenParser,
    /// For JSON.
    watch: Option<Watch>,
    /// The parser cannot go on.
    failure: Option<String>,
}

impl State {
    fn copy(&self) -> Self {
        Self {
            parser: self.parser.deep_clone(),
            watch: self.watch.clone(),
            failure: self.failure.clone(),
        }
    }

    /// Calls the parser, which may panic. After an error, it is not called again.
    fn call<T>(&mut self, call: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Result<T, String> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        let parser = &mut self.parser;
        let result = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(call(parser))));
        let result = result.map_err(|e| e.to_string()).flatten();
        self.failure = result.as_ref().err().cloned();
        result
    }

    /// True if only the end of the text may follow.
    fn is_stopped(&self) -> bool {
        self.failure.is_some() || self.parser.stop_reason() != StopReason::NotStopped
    }

    /// Whether each token may come next, and whether the text may end.
    fn allowed(&mut self) -> Result<(SimpleVob, bool), String> {
        self.call(|parser| {
            let ends = parser.is_accepting();
            let stopped = parser.stop_reason() != StopReason::NotStopped;
            match stopped {
                true => Ok((parser.token_env.tok_trie().eos_token_set(), ends)),
                false => parser
                    .compute_mask()
                    .map(|m| (m, ends))
                    .map_err(|e| e.to_string()),
            }
        })
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let mut watch = self.watch.take();
        let taken = self.call(|parser| {
            let env = parser.token_env.clone();
            if let Some(watch) = &mut watch {
                let word = env.tok_trie().token(token);
                if !watch.allows(parser, word) {
                    return Err("it repeats the name of a member".to_owned());
                }
                watch.accept(word);
            }
            parser.consume_token(token).map_err(|e| e.to_string())?;
            parser.check_stop().map(|_| ()).map_err(|e| e.to_string())
        });
        self.watch = watch;
        taken
    }
}

impl Grammar {
    /// A context-free grammar in Lark notation, as `llguidance` reads it, or in llama.cpp's GBNF.
    /// The rule `start`, or `root` in GBNF, matches the whole text, after which one of `eos` may
    /// come. Fails if the grammar is invalid; in GBNF, the error names the line.
    pub fn lark(text: &str, tokenizer: &Tokenizer, eos: &[u32]) -> Result<Self> {
        let grammar = if is_gbnf(text) {
            let made = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(gbnf::compile(text))));
            let made = made.map_err(|e| e.to_string()).flatten();
            let (grammar, lexer) = made.map_err(|e| unusable(GRAMMAR, &e))?;
            GrammarInit::Internal(grammar, lexer)
        } else {
            GrammarInit::Serialized(TopLevelGrammar::from_lark(text.to_owned()))
        };
        let tokens = ForGrammars::of(tokenizer)?;
        Self::of(grammar, None, &tokens, eos).map_err(|e| unusable(GRAMMAR, &e))
    }

    /// JSON that matches a schema, with default options. Errors as of
    /// [`Grammar::json_schema_with`].
    pub fn json_schema(text: &str, tokenizer: &Tokenizer, eos: &[u32]) -> Result<Self> {
        Self::json_schema_with(text, &SchemaOptions::default(), tokenizer, eos)
    }

    /// JSON that matches a schema. The members of an object are written in the order of the schema.
    /// If `properties` or `patternProperties` declares members, others need `additionalProperties`.
    /// No two members of an object have the same name. Values that the schema does not bound get
    /// default bounds ([`DefaultBound`]). Fails for invalid JSON, for an invalid schema or one with
    /// an unsupported keyword (the error names it), and for one that only an empty object matches.
    pub fn json_schema_with(
        text: &str,
        options: &SchemaOptions,
        tokenizer: &Tokenizer,
        eos: &[u32],
    ) -> Result<Self> {
        let unusable = |e: &dyn Display| unusable(SCHEMA, e);
        let schema: Value = serde_json::from_str(text).map_err(|e| unusable(&e))?;
        let made = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(schema::compile(&schema, options))));
        let made = made.map_err(|e| unusable(&e))?.map_err(|e| unusable(&e))?;
        let watch = Watch::new(made.open, made.defaults);
        let init = GrammarInit::Internal(made.grammar, made.lexer);
        let tokens = ForGrammars::of(tokenizer)?;
        Self::of(init, Some(watch), &tokens, eos).map_err(|e| unusable(&e))
    }

    /// The error is the parser's.
    fn of(
        grammar: GrammarInit,
        watch: Option<Watch>,
        tokens: &ForGrammars,
        eos: &[u32],
    ) -> Result<Self, String> {
        let made = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let mut parser = tokens.factory.create_parser_from_init_default(grammar)?;
            parser.start_without_prompt();
            Ok(parser)
        }));
        let fresh = State {
            parser: made.map_err(|e| e.to_string())?,
            watch,
            failure: None,
        };
        // Some grammars fail only when asked for the first token.
        let (allowed, ends) = fresh.copy().allowed()?;
        if allowed.is_zero() && !ends {
            return Err("no text matches it".to_owned());
        }
        Ok(Self {
            state: fresh.copy(),
            features: tokens.features.clone(),
            fresh,
            eos: eos.to_vec(),
        })
    }
}

impl Clone for Grammar {
    /// A grammar at the start of its text. Cheaper than compiling it again.
    fn clone(&self) -> Self {
        Self {
            state: self.fresh.copy(),
            fresh: self.fresh.copy(),
            features: self.features.clone(),
            eos: self.eos.clone(),
        }
    }
}

/// True for a grammar in the notation of llama.cpp.
fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let name = line.split_once("::=").map(|(name, _)| name.trim());
        let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        name.is_some_and(|name| !name.is_empty() && name.chars().all(part))
    })
}

/// What [`unusable`] calls a Lark grammar, and a JSON schema.
const GRAMMAR: &str = "grammar";
const SCHEMA: &str = "JSON schema";

fn unusable(kind: &str, e: &dyn Display) -> Error {
    let what = format!("the {kind} cannot be used: {}", words(e).join("\n  "));
    Error::other(Stage::Text, what).of_kind(ErrorKind::Usage)
}

/// Lines of an error that are shown.
const LINES: usize = 12;

/// The lines of a parser error, without the parser state that it may append. A caret points into
/// the lines of the grammar that it quotes.
fn words(e: &dyn Display) -> Vec<String> {
    let text = e.to_string();
    let message = text.split("\n<").next().unwrap_or_default();
    // The parser's name for a start state without continuations.
    let message = message.replace("NoExtensionBias", "no text matches it");
    let lines = message.lines().filter(|line| !line.trim().is_empty());
    lines.take(LINES).map(|line| line.trim_end().to_owned()).collect()
}

/// A parser error on one line.
fn line(e: &dyn Display) -> String {
    let words = words(e).join(" ");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Token IDs of a grammar are below this. The largest vocabularies have some 300 thousand tokens.
const MAX_TOKENS: usize = 1 << 21;

/// A vocabulary as parsers read it: the same for all grammars of a tokenizer.
pub(super) struct ForGrammars {
    factory: ParserFactory,
    /// See [`watch::features`].
    features: Arc<[u8]>,
}

impl fmt::Debug for ForGrammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForGrammars of {} tokens", self.features.len())
    }
}

impl ForGrammars {
    /// That of `tokenizer`, made when it is first asked for.
    fn of(tokenizer: &Tokenizer) -> Result<Arc<Self>> {
        if let Some(made) = tokenizer.for_grammars.get() {
            return Ok(made.clone());
        }
        let tokens = vocabulary(tokenizer)?;
        let made = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(tokens.end + 1, tokens.end), &tokens.words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let mut factory = ParserFactory::new_simple(&env)?;
            factory.quiet();
            Ok(factory)
        }));
        let made = Arc::new(Self {
            factory: made.map_err(|e| unusable(GRAMMAR, &e))?,
            features: watch::features(&tokens.words).into(),
        });
        Ok(tokenizer.for_grammars.get_or_init(|| made).clone())
    }
}

/// A vocabulary as bytes, plus an end token that no model has: the parser needs exactly one, and a
/// model may have several.
struct Vocabulary {
    words: Vec<Vec<u8>>,
    end: u32,
}

/// The vocabulary of `tokenizer`. An error of kind [`ErrorKind::LimitExceeded`] for an ID of
/// [`MAX_TOKENS`] or more: the parser keeps an entry for each number up to the largest ID.
fn vocabulary(tokenizer: &Tokenizer) -> Result<Vocabulary> {
    let special = |name: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat();
    let mut words: Vec<Vec<u8>> = Vec::new();
    for (id, token) in tokenizer.tokens() {
        let at = id as usize;
        if at >= MAX_TOKENS {
            let what =
                format!("token ID {id} is too large for a grammar, which takes IDs below {MAX_TOKENS}");
            let error = Error::file(Stage::Text, tokenizer.path(), what);
            return Err(error.of_kind(ErrorKind::LimitExceeded));
        }
        let more = (at + 1).saturating_sub(words.len());
        words.try_reserve(more.saturating_add(1)).map_err(|e| {
            let what = "not enough memory for the vocabulary";
            Error::caused(Stage::Text, what, e).of_kind(ErrorKind::OutOfMemory)
        })?;
        words.resize(words.len().max(at + 1), Vec::new());
        if let Some(word) = words.get_mut(at) {
            *word = if token.special {
                special(&token.bytes)
            } else {
                token.bytes
            };
        }
    }
    let end = u32::try_from(words.len())
        .map_err(|e| Error::parse(Stage::Text, tokenizer.path(), "too many tokens", e))?;
    words.push(special(b"<|transformer-lite end|>"));
    Ok(Vocabulary { words, end })
}

impl Constraint for Grammar {
    fn start(&mut self) -> Result<()> {
        self.state = self.fresh.copy();
        Ok(())
    }

    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let failed = |e: &dyn Display| Error::other(Stage::Text, format!("the grammar fails: {}", line(e)));
        let (allowed, ends) = self.state.allowed().map_err(|e| failed(&e))?;
        let allows = |id: u32| (id as usize) < allowed.len() && allowed.is_allowed(id);
        let watch = self.state.watch.take();
        let forbidden = match &watch {
            Some(watch) if !self.state.is_stopped() => self
                .state
                .call(|parser| Ok(watch.forbidden(parser, &self.features, &allows))),
            _ => Ok(Vec::new()),
        };
        self.state.watch = watch;
        let forbidden = forbidden.map_err(|e| failed(&e))?;
        let mut forbidden = forbidden.into_iter().peekable();
        let mut left = false;
        for (id, logit) in (0u32..).zip(logits) {
            let repeats = forbidden.next_if_eq(&id).is_some();
            let is_end = self.eos.contains(&id);
            if is_end && ends || !is_end && allows(id) && !repeats {
                left = true;
            } else {
                *logit = f32::NEG_INFINITY;
            }
        }
        if left {
            return Ok(());
        }
        Err(failed(&"no token of the model's vocabulary may come next"))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        self.state.accept(token).map_err(|e| {
            Error::other(
                Stage::Text,
                format!("the grammar does not allow token {token}: {}", line(&e)),
            )
        })
    }

    fn is_complete(&self) -> bool {
        self.state.is_stopped()
    }

    fn reached(&self) -> Vec<DefaultBound> {
        self.state.watch.as_ref().map_or_else(Vec::new, Watch::reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::{FakeModel, write_byte_fallback_tokenizer, write_byte_level_tokenizer};
    use crate::llm::{
        DecodeOptions, Finish, Generator, LanguageModel, NgramDraft, Sampler, SamplerConfig, Speculation,
    };
    use crate::testing::assert_carries;

    fn tokenizer() -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        write_byte_level_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        (dir, tokenizer)
    }

    fn generate(
        grammar: Grammar,
        config: SamplerConfig,
        model: &mut dyn LanguageModel,
        draft: bool,
    ) -> (String, Option<Finish>) {
        let mut sampler = Sampler::new(config).unwrap().constrained(Box::new(grammar));
        let options = DecodeOptions {
            max_tokens: 600,
            eos: vec![257],
            ..DecodeOptions::default()
        };
        let mut ngrams = Speculation::fixed(Box::new(NgramDraft::default()), 4);
        let mut generator = Generator::new(model, &mut sampler, &[256], options).unwrap();
        if draft {
            generator = generator.speculating(&mut ngrams);
        }
        let ids: Vec<u8> = generator.by_ref().map(|t| t.unwrap().id as u8).collect();
        (String::from_utf8(ids).unwrap(), generator.finish())
    }

    /// Always wants the same byte.
    fn stubborn(byte: u8) -> FakeModel {
        FakeModel::new(258, 1000, move |_| u32::from(byte))
    }

    #[test]
    fn a_model_says_what_the_grammar_allows() {
        let (_dir, tokenizer) = tokenizer();
        let text = "start: \"yes\" | \"no\" tail?\ntail: \"!\"+";
        let generate = |byte, draft| {
            let grammar = Grammar::lark(text, &tokenizer, &[257]).unwrap();
            generate(grammar, SamplerConfig::default(), &mut stubborn(byte), draft)
        };
        for draft in [false, true] {
            // Of what is equally likely the first: `n` before `y`, `!` before the end.
            assert_eq!(generate(b'y', draft), ("yes".to_owned(), Some(Finish::Complete)));
            let (loud, end) = generate(b'!', draft);
            assert!(loud.starts_with("no!!!!") && loud.len() == 600, "{loud}");
            assert_eq!(end, Some(Finish::MaxTokens));
        }
        // An end token counts where the text may end, and nowhere else.
        let mut ending = FakeModel::new(258, 1000, |_| 257);
        let grammar = Grammar::lark(text, &tokenizer, &[257]).unwrap();
        let (text, end) = super::tests::generate(grammar, SamplerConfig::default(), &mut ending, false);
        assert_eq!((text.as_str(), end), ("no", Some(Finish::Eos(257))));
    }

    #[test]
    fn random_json_keeps_to_its_schema() {
        let (_dir, tokenizer) = tokenizer();
        let schema = r#"{"type": "object", "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 5},
            "age": {"type": "integer", "minimum": 3, "maximum": 120},
            "kind": {"enum": ["cat", "dog"]}},
            "required": ["name", "age", "kind"], "additionalProperties": false}"#;
        let mut complete = 0;
        for seed in 0..8 {
            let config = SamplerConfig {
                temperature: 1.0,
                seed,
                logit_bias: [b' ', b'\n', b'\t', b'\r'].map(|b| (u32::from(b), -8.0)).to_vec(),
                ..SamplerConfig::default()
            };
            let grammar = Grammar::json_schema(schema, &tokenizer, &[257]).unwrap();
            let mut model = FakeModel::new(258, 1000, |cache| (cache.len() as u32 * 37) % 128);
            let (text, end) = generate(grammar, config, &mut model, seed % 2 == 0);
            assert_eq!(end, Some(Finish::Complete), "{text}");
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let name = value["name"].as_str().unwrap();
            assert!((1..=5).contains(&name.chars().count()), "{text}");
            assert!((3..=120).contains(&value["age"].as_i64().unwrap()), "{text}");
            assert!(matches!(value["kind"].as_str(), Some("cat" | "dog")), "{text}");
            assert_eq!(value.as_object().unwrap().len(), 3);
            complete += 1;
        }
        assert_eq!(complete, 8);
    }

    #[test]
    fn pieces_of_words_count_by_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        write_byte_fallback_tokenizer(dir.path());
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let mut grammar = Grammar::lark("start: \"a a\"", &tokenizer, &[1]).unwrap();
        let mut logits = vec![0.0; 261];
        grammar.mask(&mut logits).unwrap();
        let left =
            |logits: &[f32]| -> Vec<usize> { (0..logits.len()).filter(|i| logits[*i] == 0.0).collect() };
        // `a`, and the byte of it.
        assert_eq!(left(&logits), [3, 5 + usize::from(b'a')]);
        grammar.accept(3).unwrap();
        let mut logits = vec![0.0; 261];
        grammar.mask(&mut logits).unwrap();
        // A space, ` a`, and the byte of a space.
        assert_eq!(left(&logits), [2, 4, 5 + usize::from(b' ')]);
        assert!(!grammar.is_complete());
        grammar.accept(4).unwrap();
        assert!(grammar.is_complete());
        grammar.start().unwrap();
        assert!(!grammar.is_complete());
        let e = grammar.accept(4).unwrap_err();
        assert_carries(e, &["4"]);
    }

    #[test]
    fn token_ids_beyond_any_vocabulary_are_refused() {
        let (dir, _) = tokenizer();
        let path = dir.path().join("tokenizer.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (id, kind) in [
            (MAX_TOKENS as u64 - 1, None),
            (MAX_TOKENS as u64, Some(ErrorKind::LimitExceeded)),
            (4_294_967_290, Some(ErrorKind::LimitExceeded)),
        ] {
            json["model"]["vocab"]["far away"] = id.into();
            std::fs::write(&path, json.to_string()).unwrap();
            let tokenizer = Tokenizer::load(dir.path()).unwrap();
            let made = Grammar::json_schema(r#"{"type": "object"}"#, &tokenizer, &[]);
            assert_eq!(made.err().map(|e| e.kind()), kind, "{id}");
        }
    }

    #[test]
    fn what_is_no_grammar_is_refused() {
        let (_dir, tokenizer) = tokenizer();
        for text in [
            "",
            "start: undefined",
            "start: \"a",
            "{",
            "start: start \"a\"",
            "start: a\na: start \"b\" | a \"c\"",
        ] {
            let e = Grammar::lark(text, &tokenizer, &[]).err().unwrap();
            let words = e.to_string();
            assert_eq!(e.kind(), ErrorKind::Usage, "{text}: {words}");
            assert!(!words.contains("state>") && words.len() < 500, "{text}: {words}");
        }
        // The place in the grammar is shown below it.
        let e = Grammar::lark("start: \"a\" undefined", &tokenizer, &[])
            .err()
            .unwrap();
        let text = e.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let quoted = lines
            .iter()
            .position(|l| l.contains("start: \"a\" undefined"))
            .unwrap();
        let column = lines[quoted].find("\"a\"").unwrap();
        assert_eq!(lines[quoted + 1].find('^'), Some(column), "{text}");
        for text in ["", "{\"type\": 3}", "{\"type\": \"unheard of\"}", "[1"] {
            let e = Grammar::json_schema(text, &tokenizer, &[]).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
            assert!(e.to_string().len() < 500, "{e}");
        }
        for (text, gbnf) in [
            ("root ::= \"yes\" | \"no\"", true),
            ("# x\n  my-rule ::=\n  [a-z]+", true),
            ("start: \"::=\"", false),
        ] {
            assert_eq!(is_gbnf(text), gbnf, "{text}");
        }
        assert!(Grammar::lark("root ::= \"a\"", &tokenizer, &[]).is_ok());
    }
}
