//! Words that differ by a slip of the fingers.

use strsim::osa_distance;

/// Whether `a` and `b` differ by at most one edit, or one in four letters: an insertion, a
/// deletion, a replacement or a swap of neighbours.
pub fn is_near(a: &str, b: &str) -> bool {
    let letters = a.chars().count().min(b.chars().count());
    osa_distance(a, b) <= (letters / 4).max(1)
}

/// The first of `words` with the fewest edits from `word`, if it is near.
pub fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = words.into_iter().filter(|w| is_near(word, w));
    near.min_by_key(|w| osa_distance(word, w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        let counts = [("", "ab"), ("sytem", "system"), ("hepl", "help")].map(|(a, b)| osa_distance(a, b));
        assert_eq!(counts, [2, 1, 1]);
        for (a, b) in [
            ("--temprature", "--temperature"),
            ("/sytem", "/system"),
            ("chta", "chat"),
        ] {
            assert!(is_near(a, b), "{a} {b}");
        }
        for (a, b) in [
            ("--port", "--prompt"),
            ("--lora", "--float"),
            ("--log-disable", "--logit-bias"),
        ] {
            assert!(!is_near(a, b), "{a} {b}");
        }
        assert_eq!(nearest("/sav", ["/set", "/save", "/stats"]), Some("/save"));
        assert_eq!(nearest("/nothing", ["/set", "/save"]), None);
    }
}
