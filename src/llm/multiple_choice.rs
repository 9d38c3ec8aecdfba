//! Multiple-choice questions, scored as lm-evaluation-harness scores them.
//!
//! Each choice continues the text of the question after one space. White space at the end of the
//! question counts as part of the continuation. The context is the tokens of the question, after
//! the tokenizer's start tokens if there are any. A continuation is the tokens of both texts
//! together, without as many as the question has.
//!
//! The score of a choice is the sum of the natural logarithms of the probabilities of its tokens,
//! each given the context and the tokens of the choice before it. Two choices are made:
//!
//! * [`best`] takes the choice with the largest score (`acc`);
//! * [`best_normalized`] takes the one with the largest score per character (`acc_norm`), that is,
//!   per Unicode code point of the choice without the space.

use super::engine::CHUNK;
use super::perplexity::score_rows;
use super::sampler::not_finite;
use super::{Cancel, LanguageModel, Tokenizer};
use crate::error::{Error, ErrorKind, Result};
use crate::fmt::shown;
use crate::num;
use serde_json::{Map, Value};

/// A question with the index of its right choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text that each choice continues.
    pub question: String,
    /// At least two texts, none of them empty.
    pub choices: Vec<String>,
    /// Index of the right choice.
    pub answer: usize,
    /// A name for reports: any JSON value.
    pub id: Option<Value>,
}

impl Question {
    /// Reads a JSON object with the fields `question`, `choices`, `answer` and, optionally, `id`.
    /// Others are ignored. Usage errors name the field.
    pub fn parse(json: &str) -> Result<Self> {
        let object: Map<String, Value> = serde_json::from_str(json).map_err(|e| {
            let (column, text) = (e.column(), e.to_string());
            // The text ends with a line number, which is always 1.
            let what = text.split(" at line ").next().unwrap_or_default();
            let expected = "expected an object with question, choices and answer";
            Error::usage("JSON", format!("{expected}; {what} at column {column}"))
        })?;
        let choices: Vec<String> = field(&object, "choices", "at least 2 texts, none empty", |v| {
            let texts = v.as_array()?.iter().map(Value::as_str);
            let texts = texts.map(|t| t.filter(|t| !t.is_empty()).map(str::to_owned));
            texts.collect::<Option<Vec<_>>>().filter(|list| list.len() > 1)
        })?;
        let index = format!("an index from 0 to {}", choices.len() - 1);
        Ok(Self {
            question: field(&object, "question", "a text", |v| v.as_str().map(str::to_owned))?,
            answer: field(&object, "answer", &index, |v| {
                let answer = usize::try_from(v.as_u64()?).ok()?;
                (answer < choices.len()).then_some(answer)
            })?,
            choices,
            id: object.get("id").cloned(),
        })
    }

    /// The tokens of the question and its choices; `start` are the tokenizer's
    /// [start tokens](Tokenizer::start). Usage errors: a question without tokens before its
    /// choices, a choice that adds none.
    pub fn encode(&self, tokenizer: &Tokenizer, start: &[u32]) -> Result<Encoded> {
        let context = tokenizer.encode(self.question.trim_end(), false)?;
        let continuations = self.choices.iter().enumerate().map(|(i, choice)| {
            let whole = tokenizer.encode(&format!("{} {choice}", self.question), false)?;
            match whole.get(context.len()..) {
                Some([]) | None => {
                    let (has, before) = (whole.len(), context.len());
                    let what =
                        format!("choice {i} adds no token: the question has {before}, both together {has}");
                    Err(Error::usage("choices", what))
                }
                Some(tokens) => Ok(tokens.to_vec()),
            }
        });
        let continuations = continuations.collect::<Result<_>>()?;
        let context = [start, &context].concat();
        match context.is_empty() {
            true => Err(Error::usage("question", "expected at least 1 token, found 0")),
            false => Ok(Encoded {
                context,
                continuations,
            }),
        }
    }
}

/// The field `name` as `read` returns it; `expected` describes what it accepts.
fn field<T>(
    object: &Map<String, Value>,
    name: &str,
    expected: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<T> {
    /// Characters of a value in an error.
    const SHOWN: usize = 60;
    let value = object.get(name);
    value.and_then(read).ok_or_else(|| {
        let found = value.map_or_else(
            || "no such field".to_owned(),
            |v| v.to_string().chars().take(SHOWN).collect(),
        );
        Error::usage(name, format!("expected {expected}; found {}", shown(&found)))
    })
}

/// Tokens of a question and its choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// At least one token.
    context: Vec<u32>,
    /// At least one token each.
    continuations: Vec<Vec<u32>>,
}

impl Encoded {
    /// Tokens that the model runs: the context once, each choice without its last token.
    pub fn tokens(&self) -> usize {
        let rest = self.continuations.iter().map(|c| c.len() - 1);
        self.context.len() + rest.sum::<usize>()
    }

    /// The context length that the question needs, in tokens.
    pub fn needed(&self) -> usize {
        let rest = self.continuations.iter().map(|c| c.len() - 1);
        self.context.len() + rest.max().unwrap_or(0)
    }

    /// A usage error if the question does not fit in a context of `room` tokens.
    pub fn check(&self, room: usize) -> Result<()> {
        let needed = self.needed();
        if needed <= room {
            return Ok(());
        }
        let what =
            format!("needs a context of {needed} tokens with its longest choice; the context has {room}");
        Err(Error::usage("question", what).of_kind(ErrorKind::ContextExceeded))
    }

    /// The score of each choice: the natural logarithm of its probability after the context. `None`
    /// if `cancel` is set. The model runs the context once, if its cache can be truncated to it.
    /// Returns the errors of [`Encoded::check`] and of the model, and an error for logits that are
    /// not finite.
    pub fn score(&self, model: &mut dyn LanguageModel, cancel: &Cancel) -> Result<Option<Vec<f64>>> {
        self.check(model.context())?;
        model.truncate(0);
        let (vocab, mut row) = (model.vocab(), Vec::new());
        let mut scores = Vec::new();
        for tokens in &self.continuations {
            let kept = model.truncate(self.context.len());
            for part in num::part(&self.context, kept..)?.chunks(CHUNK) {
                if cancel.is_cancelled() {
                    return Ok(None);
                }
                model.forward(part, &mut row)?;
            }
            let (first, rest) = tokens.split_at(1);
            let mut losses = score_rows(vocab, &row, None, first);
            for (part, targets) in tokens.chunks(CHUNK).zip(rest.chunks(CHUNK)) {
                if cancel.is_cancelled() {
                    return Ok(None);
                }
                let rows = model.forward_all(num::part(part, ..targets.len())?)?;
                losses.extend(score_rows(vocab, &rows, None, targets));
            }
            if let Some(at) = losses.iter().position(|s| !s.loss.is_finite()) {
                return Err(not_finite(format!(
                    "those for token {at} of choice {}",
                    scores.len()
                )));
            }
            scores.push(-losses.iter().map(|s| s.loss).sum::<f64>());
        }
        Ok(Some(scores))
    }
}

/// Index of the largest score; the first one on ties.
pub fn best(scores: &[f64]) -> usize {
    let first = (0, f64::NEG_INFINITY);
    let scores = scores.iter().copied().enumerate();
    scores.fold(first, |a, b| if b.1 > a.1 { b } else { a }).0
}

/// Index of the largest score per character of its choice; the first one on ties.
pub fn best_normalized(scores: &[f64], choices: &[String]) -> usize {
    let lengths = choices.iter().map(|c| c.chars().count() as f64);
    let scores: Vec<f64> = scores.iter().zip(lengths).map(|(s, n)| s / n).collect();
    best(&scores)
}

/// Share of questions that were answered right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    /// Questions answered.
    pub questions: usize,
    /// Those answered right.
    pub right: usize,
}

impl Accuracy {
    /// Adds an answer.
    pub fn add(&mut self, right: bool) {
        self.questions += 1;
        self.right += usize::from(right);
    }

    /// The share, from 0 to 1; NaN without questions.
    pub fn value(&self) -> f64 {
        self.right as f64 / self.questions as f64
    }

    /// Standard error of the share: the sample standard deviation over the square root of the
    /// number of questions.
    pub fn standard_error(&self) -> f64 {
        let others = self.questions.saturating_sub(1).max(1);
        (self.value() * (1.0 - self.value()) / others as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::testing::{FakeModel, byte_codec};
    use crate::testing::assert_usage;

    const QUESTION: &str = r#"{"question": "a", "choices": ["b", "cd"], "answer": 1, "id": "x", "more": 0}"#;

    /// Gives the token after the last one a logit of 5, all seven others 0.
    fn counting(context: usize) -> FakeModel {
        FakeModel::new(8, context, |cache| (cache.last().unwrap() + 1) % 8)
    }

    fn encoded(context: &[u32], continuations: &[&[u32]]) -> Encoded {
        Encoded {
            context: context.to_vec(),
            continuations: continuations.iter().map(|c| c.to_vec()).collect(),
        }
    }

    fn score(question: &Encoded, model: &mut FakeModel) -> Vec<f64> {
        question.score(model, &Cancel::default()).unwrap().unwrap()
    }

    #[test]
    fn scores_are_sums_of_log_probabilities() {
        let question = encoded(&[6, 0, 1], &[&[2, 3, 4], &[2], &[3, 4]]);
        let mut model = counting(5);
        let scores = score(&question, &mut model);
        let norm = (5f64.exp() + 7.0).ln();
        let [right, wrong] = [5.0 - norm, -norm];
        for (score, wanted) in scores.iter().zip([3.0 * right, right, wrong + right]) {
            assert!((score - wanted).abs() < 1e-12, "{score} is not {wanted}");
        }
        // The context runs once, and no last token.
        assert_eq!(model.calls, [vec![6, 0, 1], vec![2], vec![3], vec![3]]);
        assert_eq!((question.tokens(), question.needed()), (6, 5));
    }

    #[test]
    fn a_cache_that_forgets_runs_the_context_again() {
        let long: Vec<u32> = (0..300).map(|i| i * i % 8).collect();
        let question = encoded(&long, &[&long, &[2, 3], &long[..200]]);
        let (mut keeps, mut forgets) = (counting(600), counting(600));
        forgets.reach = Some(10);
        assert_eq!(score(&question, &mut keeps), score(&question, &mut forgets));
        assert!(forgets.calls.len() > keeps.calls.len());
        let sizes: Vec<usize> = keeps.calls.iter().map(Vec::len).take(6).collect();
        assert_eq!(sizes, [128, 128, 44, 1, 1, 1]);
    }

    #[test]
    fn a_question_too_long_for_the_context_is_not_run() {
        let mut model = counting(4);
        let question = encoded(&[1, 2, 3], &[&[4], &[4, 5, 6]]);
        let e = question.score(&mut model, &Cancel::default()).unwrap_err();
        assert_usage(&e, "question", &["5", "4"]);
        assert_eq!(e.kind(), ErrorKind::ContextExceeded);
        assert!(model.calls.is_empty());
    }

    #[test]
    fn a_cancelled_question_has_no_scores() {
        let cancel = Cancel::default();
        cancel.cancel();
        let question = encoded(&[1], &[&[2], &[3]]);
        assert_eq!(question.score(&mut counting(4), &cancel).unwrap(), None);
    }

    #[test]
    fn tokens_after_those_of_the_question_are_the_choice() {
        let (_dir, codec) = byte_codec("{}");
        let mut question = Question::parse(QUESTION).unwrap();
        question.question = "a \n".to_owned();
        let found = question.encode(codec.tokenizer(), &[256]).unwrap();
        let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
        let wanted = [bytes(" \n b"), bytes(" \n cd")];
        assert_eq!(found.context, [256, 97]);
        assert_eq!(found.continuations, wanted);
        question.question = " ".to_owned();
        assert!(question.encode(codec.tokenizer(), &[256]).is_ok());
        let e = question.encode(codec.tokenizer(), &[]).unwrap_err();
        assert_usage(&e, "question", &["0", "1"]);
    }

    #[test]
    fn fields_are_checked() {
        let question = Question::parse(QUESTION).unwrap();
        assert_eq!((question.answer, question.choices.len()), (1, 2));
        assert_eq!(question.id, Some("x".into()));
        let without = |field: &str, value: Option<Value>| {
            let mut object: Value = serde_json::from_str(QUESTION).unwrap();
            let object = object.as_object_mut().unwrap();
            object.remove(field);
            object.extend(value.map(|v| (field.to_owned(), v)));
            Question::parse(&serde_json::to_string(object).unwrap()).unwrap_err()
        };
        let long = "y".repeat(1000);
        // With the quotation mark.
        let shown_of_long = &long[..59];
        for (field, value, shown) in [
            ("question", None, "text"),
            ("question", Some(3.into()), "3"),
            ("choices", None, "texts"),
            ("choices", Some(serde_json::json!([])), "[]"),
            ("choices", Some(serde_json::json!(["one"])), "one"),
            ("choices", Some(serde_json::json!(["one", ""])), "2 texts"),
            ("choices", Some(serde_json::json!(["one", 2])), "2"),
            ("choices", Some(long.clone().into()), shown_of_long),
            ("answer", None, "0 to 1"),
            ("answer", Some(2.into()), "2"),
            ("answer", Some((-1).into()), "-1"),
            ("answer", Some(0.5.into()), "0.5"),
            ("answer", Some(u64::MAX.into()), "18446744073709551615"),
            ("answer", Some("B\n".into()), "B"),
        ] {
            let e = without(field, value);
            assert_usage(&e, field, &[shown]);
            assert!(e.to_string().len() < 200, "{e}");
        }
        let deep = format!("{{\"question\": {}", "[".repeat(1000));
        for (json, column) in [
            ("", "0"),
            ("[]", "0"),
            ("{\"question\": \"a", "15"),
            (&deep, "140"),
        ] {
            assert_usage(&Question::parse(json).unwrap_err(), "JSON", &[column]);
        }
    }

    #[test]
    fn choices_by_score_and_by_characters() {
        assert_eq!(best(&[-3.0, -1.0, -1.0]), 1);
        // Both have two code points, though not two bytes.
        let choices = ["éé", "ab", "abcdef"].map(str::to_owned);
        assert_eq!(best_normalized(&[-2.0, -2.0, -5.0], &choices), 2);
        assert_eq!(best_normalized(&[-2.0, -2.0, -7.0], &choices), 0);
    }

    #[test]
    fn accuracy_has_the_error_of_a_sample() {
        let mut accuracy = Accuracy::default();
        for i in 0..10 {
            accuracy.add(i < 4);
        }
        assert_eq!(accuracy.value(), 0.4);
        // The sample variance is 10 / 9 of 0.24.
        assert!((accuracy.standard_error() - (0.24 / 9.0f64).sqrt()).abs() < 1e-15);
        accuracy = Accuracy::default();
        accuracy.add(true);
        assert_eq!((accuracy.value(), accuracy.standard_error()), (1.0, 0.0));
    }
}
