//! How byte-level vocabularies cut text into words before they merge, by the name that GGUF files
//! give it in `tokenizer.ggml.pre`.
//!
//! The steps are those that the models' own `tokenizer.json` lists.

use serde_json::{Value, json};

/// One step: each piece of text is cut further.
#[derive(Debug, PartialEq, Eq)]
enum Split {
    /// What matches is a piece of its own, so is what lies between.
    At(&'static str),
    /// Each digit is a piece.
    EachDigit,
    /// Runs of digits are pieces.
    Digits,
    /// Runs of punctuation are pieces.
    Punctuation,
    /// GPT-2's pattern; bytes are written as characters from here on.
    Gpt2,
}

/// How text is cut, and what goes with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pre {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Text is brought to the composed form first.
    pub nfc: bool,
    cuts: &'static [Split],
    /// A word that is a token is never merged from parts.
    pub whole_words: bool,
    /// A first token is added unless the file says otherwise.
    pub starts: bool,
    /// Name of the class that Hugging Face reads such a tokenizer with.
    pub class: &'static str,
}

impl Pre {
    const GPT2: Self = Self {
        names: &["gpt-2", "phi-2"],
        nfc: false,
        cuts: &[Split::Gpt2],
        whole_words: false,
        starts: false,
        class: "GPT2Tokenizer",
    };

    /// The rules of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PRES.iter().find(|p| p.names.contains(&name))
    }

    /// All names that are known, for messages.
    pub fn names() -> String {
        let all: Vec<&str> = PRES.iter().flat_map(|p| p.names).copied().collect();
        all.join(", ")
    }

    /// `pre_tokenizer` of `tokenizer.json`.
    pub fn json(&self) -> Value {
        let mut steps: Vec<Value> = self.cuts.iter().map(Split::json).collect();
        if !self.cuts.contains(&Split::Gpt2) {
            steps.push(byte_level(false));
        }
        match steps.as_slice() {
            [one] => one.clone(),
            _ => json!({"type": "Sequence", "pretokenizers": steps}),
        }
    }
}

impl Split {
    fn json(&self) -> Value {
        match self {
            Self::At(pattern) => {
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
            }
            Self::EachDigit => json!({"type": "Digits", "individual_digits": true}),
            Self::Digits => json!({"type": "Digits", "individual_digits": false}),
            Self::Punctuation => json!({"type": "Punctuation", "behavior": "Contiguous"}),
            Self::Gpt2 => byte_level(true),
        }
    }
}

/// The step, or decoder, that writes bytes as characters.
pub(super) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// Words with a mark or space before them, numbers of at most three digits, signs, line ends,
/// spaces.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same, digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words are cut before capitals too.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with English endings, numbers of at most three digits.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters of alphabets with cases, and a space before them.
const CASED_WORDS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/// Marks of ASCII, their wide forms, quotation marks, and a space before them.
const MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
/// Runs of Chinese and of the blocks from U+0800 on, of Korean.
const IDEOGRAPHS: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

static PRES: &[Pre] = &[
    Pre::GPT2,
    Pre {
        names: &["mpt"],
        nfc: true,
        ..Pre::GPT2
    },
    Pre {
        names: &["smollm", "starcoder", "refact"],
        cuts: &[Split::EachDigit, Split::Gpt2],
        ..Pre::GPT2
    },
    Pre {
        names: &["command-r"],
        nfc: true,
        cuts: &[Split::EachDigit, Split::Gpt2],
        class: "CohereTokenizer",
        ..Pre::GPT2
    },
    Pre {
        names: &["falcon"],
        cuts: &[
            Split::Punctuation,
            Split::Gpt2,
            Split::Digits,
            Split::At("[0-9][0-9][0-9]"),
        ],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        nfc: true,
        cuts: &[Split::At(QWEN2)],
        class: "Qwen2Tokenizer",
        ..Pre::GPT2
    },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        cuts: &[Split::At(LLAMA3)],
        whole_words: true,
        starts: true,
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["smaug-bpe"],
        cuts: &[Split::At(LLAMA3)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["tekken"],
        cuts: &[Split::At(TEKKEN)],
        whole_words: true,
        starts: true,
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["gpt-4o"],
        cuts: &[Split::At(GPT4O)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["deepseek-llm"],
        cuts: &[
            Split::At("[\r\n]"),
            Split::At(CASED_WORDS),
            Split::At(MARKS),
            Split::At(r"\s+$"),
            Split::At(IDEOGRAPHS),
            Split::EachDigit,
        ],
        class: "LlamaTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["deepseek-coder"],
        cuts: &[
            Split::At("[\r\n]"),
            Split::At(r"\s?\p{L}+"),
            Split::At(r"\s?\p{P}+"),
            Split::At(IDEOGRAPHS),
            Split::EachDigit,
        ],
        class: "LlamaTokenizerFast",
        ..Pre::GPT2
    },
];
