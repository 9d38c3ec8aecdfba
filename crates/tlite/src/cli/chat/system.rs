//! The system prompt in force.

use super::Talk;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::llm::template::Values;
use transformer_lite::unstable::llm::{Cancel, Codec, Message};

/// Texts that no template contains.
const SYSTEM: &str = "tlite-system-0617";
const USER: &str = "tlite-user-0617";

impl Talk<'_> {
    /// The system prompt: that of the conversation, else the one that the chat template adds.
    pub(super) fn system(&mut self) -> Option<String> {
        let first = self
            .conversation
            .messages()
            .first()
            .filter(|m| m.role == "system");
        if let Some(first) = first.filter(|m| !m.content.is_empty()) {
            return Some(first.content.clone());
        }
        let codec = self.conversation.session().codec().clone();
        let added = added(&codec, &self.template_values).ok()??;
        Some(format!(
            "{added}\n(from the chat template; /system TEXT replaces it)"
        ))
    }
}

/// The system prompt that the chat template adds to a conversation without one.
fn added(codec: &Codec, values: &Values) -> Result<Option<String>> {
    let text = |messages: &[Message]| codec.chat()?.render(messages, values, false, &Cancel::default());
    let with = text(&[Message::system(SYSTEM), Message::user(USER)])?;
    let without = text(&[Message::user(USER)])?;
    let found = || {
        let (before, rest) = with.split_once(SYSTEM)?;
        let (after, _) = rest.split_once(USER)?;
        let (start, _) = without.split_once(USER)?;
        let added = start.strip_prefix(before)?.strip_suffix(after)?.trim();
        (!added.is_empty()).then(|| added.to_owned())
    };
    Ok(found())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlite_testing::llm::testing::byte_codec;

    fn of(template: &str) -> Option<String> {
        let (dir, codec) = byte_codec("{}");
        std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        added(&codec, &Values::new()).ok().flatten()
    }

    #[test]
    fn prompt_of_a_template_is_what_it_adds() {
        let turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
        let helpful = "{% if messages[0].role != 'system' %}<system>Be helpful.<end>{% endif %}";
        assert_eq!(of(&format!("{helpful}{turns}")).as_deref(), Some("Be helpful."));
        assert_eq!(of(turns), None);
        let refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}";
        assert_eq!(of(&format!("{refuses}{turns}")), None);
    }
}
