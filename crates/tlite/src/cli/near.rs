//! Words that differ by a slip of the fingers.

/// Whether `a` and `b` differ by at most one edit, or one in four letters: an insertion, a
/// deletion, a replacement or a swap of neighbours.
pub fn is_near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let most = (a.len().min(b.len()) / 4).max(1);
    edits(&a, &b) <= most
}

/// The first of `words` with the fewest edits from `word`, if it is near.
pub fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters: Vec<char> = word.chars().collect();
    let near = words.into_iter().filter(|w| is_near(word, w));
    near.min_by_key(|w| edits(&letters, &w.chars().collect::<Vec<_>>()))
}

fn edits(a: &[char], b: &[char]) -> usize {
    let mut older: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut best = (at(&last, j) + usize::from(x != y)).min(at(&last, j + 1) + 1);
            best = best.min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&older, j - 1) + 1);
            }
            row.push(best);
        }
        older = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        let count = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(
            (count("", "ab"), count("sytem", "system"), count("hepl", "help")),
            (2, 1, 1)
        );
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
