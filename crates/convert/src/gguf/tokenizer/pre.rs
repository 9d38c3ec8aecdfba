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
    pub const GPT2: Self = Self {
        names: &[
            "gpt-2",
            "phi-2",
            "a.x-4.0",
            "exaone4",
            "gigachat",
            "granite-docling",
            "jais",
            "mellum",
            "modern-bert",
            "olmo",
            "trillion",
        ],
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
        names().join(", ")
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

/// All names that are known.
pub fn names() -> Vec<&'static str> {
    PRES.iter().flat_map(|p| p.names).copied().collect()
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

/// GPT-2's pattern, for steps that come before bytes are written as characters.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// As [`QWEN2`], with marks as parts of words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As [`LLAMA3`], numbers whole.
const WHOLE_NUMBERS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As [`LLAMA3`], runs of spaces in powers of two.
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Words after a sign, words with marks, signs, line ends, spaces.
const DEEPSEEK3: &str = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same, each line end alone.
const SPARK: &str =
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+";
/// Runs of Chinese and of Japanese syllables.
const HAN_AND_KANA: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// Runs of Korean, of East Asian signs, of Bopomofo, and of Chinese with Japanese syllables.
const YOUTU: &str = "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// As [`GPT4O`], digits one by one.
const GPT4O_DIGITS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Digits in groups of three, counted from the end of the number.
const THOUSANDS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Text without spaces and marks, and a space before it.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As [`QWEN2`], without English endings.
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words may hold single spaces.
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";

static PRES: &[Pre] = &[
    Pre::GPT2,
    Pre {
        names: &["default"],
        cuts: &[
            Split::At(r"[\p{P}\$\+<=>\^~\|]+"),
            Split::At(GPT2),
            Split::At(r"\p{N}+"),
            Split::At("[0-9][0-9][0-9]"),
        ],
        ..Pre::GPT2
    },
    Pre {
        names: &["mpt"],
        nfc: true,
        ..Pre::GPT2
    },
    Pre {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "mellum2",
            "minerva-7b",
        ],
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
        names: &["qwen2", "deepseek-r1-qwen", "f2llmv2", "kormo", "megrez"],
        nfc: true,
        cuts: &[Split::At(QWEN2)],
        class: "Qwen2Tokenizer",
        ..Pre::GPT2
    },
    Pre {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon-h1",
            "falcon3",
            "lfm2",
            "midm-2.0",
            "pixtral",
        ],
        cuts: &[Split::At(LLAMA3)],
        whole_words: true,
        starts: true,
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["smaug-bpe", "chatglm-bpe", "dbrx", "glm4"],
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
        names: &["gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie"],
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
    Pre {
        names: &["qwen35"],
        cuts: &[Split::At(QWEN35)],
        nfc: true,
        class: "Qwen2Tokenizer",
        ..Pre::GPT2
    },
    Pre {
        names: &["stablelm2", "grok-2", "hunyuan", "solar-open"],
        cuts: &[Split::At(QWEN2)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["laguna"],
        cuts: &[Split::At(r"[^\n]+|[\n]+"), Split::At(QWEN2)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["minicpm5"],
        cuts: &[Split::At(r"\p{N}{1,3}"), Split::At(WHOLE_NUMBERS)],
        whole_words: true,
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["jais-2"],
        cuts: &[Split::At(JAIS2)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        cuts: &[
            Split::At(r"\p{N}{1,3}"),
            Split::At(HAN_AND_KANA),
            Split::At(DEEPSEEK3),
        ],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["spark2_5"],
        cuts: &[
            Split::At(r"\p{N}{1,3}"),
            Split::At(HAN_AND_KANA),
            Split::At(SPARK),
            Split::At(r"\p{N}"),
        ],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["youtu"],
        cuts: &[Split::At(YOUTU), Split::At(GPT4O_DIGITS)],
        whole_words: true,
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["cohere2moe", "tiny_aya"],
        cuts: &[Split::At(THOUSANDS), Split::At(GPT4O)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["bloom", "gpt3-finnish", "poro-chat"],
        cuts: &[Split::At(BLOOM)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["viking"],
        cuts: &[Split::At(BLOOM), Split::At(r"\p{N}")],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        cuts: &[Split::At(BAILING)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["seed-coder"],
        cuts: &[Split::At(SEED_CODER)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["ufakzeka"],
        cuts: &[Split::At(UFAKZEKA)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
    Pre {
        names: &["exaone-moe"],
        cuts: &[Split::At(EXAONE_MOE)],
        class: "PreTrainedTokenizerFast",
        ..Pre::GPT2
    },
];
