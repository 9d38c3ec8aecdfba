use super::*;

fn load(file: &File) -> Tokenizer {
    let v = Vocabulary::read(&file.open().unwrap()).unwrap();
    Tokenizer::from_bytes(serde_json::to_vec(&super::super::tokenizer::tokenizer_json(&v)).unwrap()).unwrap()
}

fn encode(t: &Tokenizer, text: &str) -> Vec<String> {
    t.encode(text, true).unwrap().get_tokens().to_vec()
}

#[test]
fn byte_level_tokenizers_split_and_round_trip() {
    let of_one_digit = [
        "smollm",
        "qwen2",
        "command-r",
        "tekken",
        "deepseek-llm",
        "deepseek-coder",
    ];
    let of_more = ["gpt-2", "llama-bpe", "smaug-bpe", "mpt", "falcon", "gpt-4o"];
    for pre in of_one_digit.into_iter().chain(of_more) {
        let mut file = File::default();
        testing::byte_vocabulary(&mut file, pre);
        let t = load(&file);
        for text in [
            "hello world",
            "  two\n\n lines\t",
            "naïve 日本 🙂",
            "12 1 2",
            "x[user]y<|im_end|>\nI'll",
            "",
        ] {
            let ids = t.encode(text, true).unwrap();
            assert_eq!(t.decode(ids.get_ids(), false).unwrap(), text, "{pre}");
        }
        assert_eq!(encode(&t, "hello world"), ["hello", "Ġwor", "ld"], "{pre}");
        let digits: &[&str] = if of_one_digit.contains(&pre) {
            &["1", "2"]
        } else {
            &["12"]
        };
        assert_eq!(encode(&t, "12"), digits, "{pre}");
        assert_eq!(
            encode(&t, "<|im_start|>hello[user]"),
            ["<|im_start|>", "hello", "[user]"],
            "{pre}"
        );
        let ids = t.encode("<|im_start|>hello[user]", true).unwrap();
        assert_eq!(
            t.decode(ids.get_ids(), true).unwrap(),
            "hello[user]",
            "only control tokens are special"
        );
    }
}

/// Pieces that a pre-tokenizer cuts a text into.
fn cut(pre: &str, text: &str) -> Vec<String> {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, pre);
    let t = load(&file);
    let mut pieces = tokenizers::PreTokenizedString::from(text);
    t.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
    let pieces = pieces.get_splits(
        tokenizers::OffsetReferential::Original,
        tokenizers::OffsetType::Byte,
    );
    pieces
        .iter()
        .map(|(_, (from, to), _)| text[*from..*to].to_owned())
        .collect()
}

#[test]
fn every_pre_tokenizer_keeps_all_text() {
    let text = "We've GPUs,  HelloWorld's 1234567\n\n/x \u{4f60}\u{597d}\u{3053} caf\u{65}\u{301} \u{661}\u{662} =>  .";
    // Falcon's cuts what stands for bytes, so that pieces may share a character.
    let names = super::super::tokenizer::pre_names().into_iter();
    for name in names.filter(|name| *name != "falcon") {
        assert_eq!(cut(name, text).concat(), text, "{name}");
    }
}

#[test]
fn a_file_without_a_pre_tokenizer_has_the_default() {
    assert_eq!(
        cut("default", "We've a+b 12345."),
        ["We", "'", "ve", " a", "+", "b", " ", "123", "45", "."]
    );
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, "default");
    let ids = |file: &File| load(file).encode("hello 12", true).unwrap().get_ids().to_vec();
    let named = ids(&file);
    file.unset("tokenizer.ggml.pre");
    assert_eq!(ids(&file), named);
}

#[test]
fn of_two_tokens_with_one_text_one_is_found() {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, "smollm");
    let mut tokens = file.tokens();
    let mut roles = vec![1; tokens.len()];
    // A control token comes before a used one, and that before an unused one.
    let (lone, end) = (tokens.len() as u32, 2);
    tokens.extend(["hello", "<|im_end|>", "hello"].map(str::to_owned));
    roles[..3].fill(3);
    let hello = tokens.iter().position(|t| t == "hello").unwrap();
    roles[hello] = 5;
    roles.extend([1, 1, 1]);
    file.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    file.set("tokenizer.ggml.token_type", Value::Array(Array::I32(roles)));
    let t = load(&file);
    let encoded = t.encode("hello<|im_end|>", false).unwrap();
    assert_eq!(encoded.get_ids(), [lone, end]);
    assert_eq!(t.get_vocab_size(true), VOCAB + 3);
}

/// Those of which no vocabulary with expected ids is at hand.
#[test]
fn pre_tokenizers_cut_words() {
    let text = "We've GPUs, HelloWorld's 12345\n/x";
    assert_eq!(
        cut("tekken", text),
        [
            "We", "'ve", " GPUs", ",", " Hello", "World", "'s", " ", "1", "2", "3", "4", "5", "\n", "/x"
        ]
    );
    assert_eq!(
        cut("gpt-4o", text),
        [
            "We've", " GPUs", ",", " Hello", "World's", " ", "123", "45", "\n", "/x"
        ]
    );
    assert_eq!(
        cut("llama-bpe", text),
        [
            "We",
            "'ve",
            " GPUs",
            ",",
            " HelloWorld",
            "'s",
            " ",
            "123",
            "45",
            "\n",
            "/x"
        ]
    );
}

#[test]
fn a_first_token_is_added_when_asked() {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, "smollm");
    file.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    assert_eq!(encode(&load(&file), "hello"), ["<|im_start|>", "hello"]);
    file.set("tokenizer.ggml.add_eos_token", Value::Bool(true));
    assert_eq!(
        encode(&load(&file), "hello"),
        ["<|im_start|>", "hello", "<|im_end|>"]
    );
    file.unset("tokenizer.ggml.bos_token_id");
    invalid(
        Vocabulary::read(&file.open().unwrap()),
        &["tokenizer.ggml.bos_token_id"],
    );
}

#[test]
fn sentence_piece_vocabularies_merge_by_score() {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let pieces = ["▁", "a", "b", "c", "bc", "ab", "▁a", "abc"];
    tokens.extend(pieces.map(str::to_owned));
    let mut roles = vec![6; tokens.len()];
    roles[..3].copy_from_slice(&[2, 3, 3]);
    roles[259..].fill(1);
    let mut scores = vec![0.0; tokens.len()];
    scores[259..].copy_from_slice(&[-10.0, -11.0, -12.0, -13.0, -1.0, -2.0, -3.0, -4.0]);
    let mut file = File::default();
    file.set("tokenizer.ggml.model", Value::String("llama".to_owned()));
    file.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    file.set("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    file.set("tokenizer.ggml.token_type", Value::Array(Array::I32(roles)));
    file.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    let t = load(&file);
    assert_eq!(encode(&t, "abc"), ["<s>", "▁a", "bc"]);
    assert_eq!(encode(&t, "ab"), ["<s>", "▁", "ab"], "the better score wins");
    assert_eq!(encode(&t, "é"), ["<s>", "▁", "<0xC3>", "<0xA9>"]);
    for text in ["abc abc", " a", "é\n日"] {
        let ids = t.encode(text, true).unwrap();
        assert_eq!(t.decode(ids.get_ids(), true).unwrap(), text);
    }
    file.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    assert_eq!(encode(&load(&file), "abc"), ["<s>", "abc"]);
    // Phi-3 takes white space to the special token before it.
    assert_eq!(encode(&load(&file), "</s> a"), ["<s>", "</s>", "▁a"]);
    file.set("general.architecture", Value::String("phi3".to_owned()));
    assert_eq!(encode(&load(&file), "</s> a"), ["<s>", "</s> ", "a"]);
    file.unset("tokenizer.ggml.scores");
    invalid(
        Vocabulary::read(&file.open().unwrap()),
        &["tokenizer.ggml.scores"],
    );
}

#[test]
fn word_pieces_are_written_as_bert_has_them() {
    let mut file = File::default();
    let tokens = ["[UNK]", "[CLS]", "[SEP]", "▁play", "ing", "▁ing", "▁."];
    file.set("tokenizer.ggml.model", Value::String("bert".to_owned()));
    file.set("tokenizer.ggml.tokens", testing::strings(&tokens));
    file.set(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![3, 3, 3, 1, 1, 1, 1])),
    );
    for (name, id) in [("unknown", 0), ("cls", 1), ("seperator", 2)] {
        file.set(&format!("tokenizer.ggml.{name}_token_id"), Value::U32(id));
    }
    let t = load(&file);
    assert_eq!(
        encode(&t, "Playing ing. x"),
        ["[CLS]", "play", "##ing", "ing", ".", "[UNK]", "[SEP]"]
    );
    assert_eq!(t.decode(&[3, 4, 5, 6], true).unwrap(), "playing ing.");
    let cased = ["[UNK]", "[CLS]", "[SEP]", "▁Play", "ing", "▁ing", "▁."];
    file.set("tokenizer.ggml.tokens", testing::strings(&cased));
    let read = Vocabulary::read(&file.open().unwrap());
    assert!(read.as_ref().is_err_and(|e| e.to_string().contains("Play\"")));
    invalid(read, &[]);
    file.set("tokenizer.ggml.tokens", testing::strings(&tokens));
    file.unset("tokenizer.ggml.seperator_token_id");
    invalid(
        Vocabulary::read(&file.open().unwrap()),
        &["tokenizer.ggml.seperator_token_id"],
    );
}

#[test]
fn templates_with_names_are_kept() {
    let mut file = File::default();
    testing::byte_vocabulary(&mut file, "smollm");
    let text = |s: &str| Value::String(s.to_owned());
    file.set("tokenizer.chat_template", text("plain"));
    file.set("tokenizer.chat_templates", testing::strings(&["tool_use"]));
    let read = |file: &File| Vocabulary::read(&file.open().unwrap());
    invalid(read(&file), &["\"tokenizer.chat_template.tool_use\""]);
    file.set("tokenizer.chat_template.tool_use", text("with tools"));
    let config = super::super::tokenizer::config_json(&read(&file).unwrap(), 8);
    let named = |name: &str, text: &str| serde_json::json!({"name": name, "template": text});
    assert_eq!(
        config["chat_template"],
        serde_json::json!([named("default", "plain"), named("tool_use", "with tools")])
    );
}
