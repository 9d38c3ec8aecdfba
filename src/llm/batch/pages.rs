//! Pages of a cache that sequences share, and the texts that full pages hold.

use crate::graph::op::paged_attention::PAGE;
use std::collections::HashMap;

/// Users of each page.
#[derive(Debug)]
pub(super) struct Pages {
    uses: Vec<u32>,
    free: Vec<u32>,
}

impl Pages {
    pub fn new(count: usize) -> Self {
        let mut free: Vec<u32> = (0..).take(count).collect();
        free.reverse();
        Self {
            uses: vec![0; count],
            free,
        }
    }

    /// Takes an unused page.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.share(page);
        Some(page)
    }

    /// Adds a user.
    pub fn share(&mut self, page: u32) {
        if let Some(uses) = self.entry(page) {
            *uses += 1;
        }
    }

    /// Removes a user.
    pub fn release(&mut self, page: u32) {
        if let Some(uses) = self.entry(page).filter(|n| **n > 0) {
            *uses -= 1;
            if *uses == 0 {
                self.free.push(page);
            }
        }
    }

    /// Number of uses of a page.
    pub fn uses(&self, page: u32) -> u32 {
        let at = usize::try_from(page).ok();
        at.and_then(|at| self.uses.get(at)).copied().unwrap_or(0)
    }

    /// Number of pages that nothing uses.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of all pages.
    pub fn all(&self) -> usize {
        self.uses.len()
    }

    fn entry(&mut self, page: u32) -> Option<&mut u32> {
        let at = usize::try_from(page).ok()?;
        self.uses.get_mut(at)
    }
}

/// A text of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PrefixId(u64);

impl PrefixId {
    /// The text without tokens.
    pub const EMPTY: Self = Self(0);
}

/// A text that is one page longer than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    before: PrefixId,
    tokens: [u32; PAGE],
}

#[derive(Debug)]
struct Prefix {
    id: PrefixId,
    /// The page with the last tokens. The prefix is one of its users.
    page: u32,
    /// Texts that are one page longer.
    longer: u32,
    used: u64,
}

/// A prefix tree of the texts whose keys and values are cached; each edge is a page. Pages that no
/// sequence uses stay until [`Prefixes::forget_one`].
#[derive(Debug)]
pub(super) struct Prefixes {
    known: HashMap<Key, Prefix>,
    keys: HashMap<PrefixId, Key>,
    ids: u64,
    clock: u64,
}

impl Prefixes {
    /// Room for the texts of `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self {
            known: HashMap::with_capacity(pages),
            keys: HashMap::with_capacity(pages),
            ids: 0,
            clock: 0,
        }
    }

    fn key(before: PrefixId, tokens: &[u32]) -> Option<Key> {
        let tokens = <[u32; PAGE]>::try_from(tokens).ok()?;
        Some(Key { before, tokens })
    }

    /// The text `before` plus `tokens`, a whole page, and the page of `tokens`.
    pub fn find(&mut self, before: PrefixId, tokens: &[u32]) -> Option<(PrefixId, u32)> {
        self.clock += 1;
        let prefix = self.known.get_mut(&Self::key(before, tokens)?)?;
        prefix.used = self.clock;
        Some((prefix.id, prefix.page))
    }

    /// Length of the longest common prefix of `tokens` and a page after `before`; that page.
    pub fn find_part(&mut self, before: PrefixId, tokens: &[u32]) -> Option<(usize, u32)> {
        let common = |key: &Key| key.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.clock += 1;
        let next = self.known.iter_mut().filter(|(key, _)| key.before == before);
        let (count, prefix) = next
            .map(|(key, p)| (common(key), p))
            .max_by_key(|(n, p)| (*n, p.page))?;
        prefix.used = self.clock;
        (count > 0).then_some((count, prefix.page))
    }

    /// Adds the text `before` plus `tokens`, a whole page, and returns it with its
    /// page: `page`, or an earlier one with the same text.
    pub fn add(
        &mut self,
        pages: &mut Pages,
        before: PrefixId,
        tokens: &[u32],
        page: u32,
    ) -> Option<(PrefixId, u32)> {
        if let Some(found) = self.find(before, tokens) {
            return Some(found);
        }
        let key = Self::key(before, tokens)?;
        if let Some(shorter) = self.keys.get(&before) {
            self.known.get_mut(shorter)?.longer += 1;
        }
        self.ids += 1;
        let id = PrefixId(self.ids);
        let prefix = Prefix {
            id,
            page,
            longer: 0,
            used: self.clock,
        };
        self.known.insert(key, prefix);
        self.keys.insert(id, key);
        pages.share(page);
        Some((id, page))
    }

    /// Number of pages that only known texts use.
    pub fn unused(&self, pages: &Pages) -> usize {
        self.known.values().filter(|p| pages.uses(p.page) == 1).count()
    }

    /// Forgets the least recently used text among those whose page no sequence uses and that no
    /// known text continues. Returns false if there is none.
    pub fn forget_one(&mut self, pages: &mut Pages) -> bool {
        let unused = |p: &&Prefix| p.longer == 0 && pages.uses(p.page) == 1;
        let oldest = self.known.values().filter(unused).min_by_key(|p| p.used);
        let key = oldest.and_then(|p| self.keys.remove(&p.id));
        let Some((key, prefix)) = key.and_then(|key| Some((key, self.known.remove(&key)?))) else {
            return false;
        };
        if let Some(shorter) = self.keys.get(&key.before).and_then(|k| self.known.get_mut(k)) {
            shorter.longer -= 1;
        }
        pages.release(prefix.page);
        true
    }

    /// Forgets all texts.
    pub fn clear(&mut self, pages: &mut Pages) {
        self.known.drain().for_each(|(_, p)| pages.release(p.page));
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_return_when_their_last_use_ends() {
        let mut pages = Pages::new(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        assert_eq!((pages.take(), pages.free()), (None, 0));
        pages.share(a);
        pages.release(a);
        assert_eq!((pages.uses(a), pages.free()), (1, 0));
        pages.release(a);
        pages.release(b);
        pages.release(b);
        assert_eq!((pages.uses(b), pages.free(), pages.all()), (0, 2, 2));
    }

    #[test]
    fn longer_texts_are_forgotten_first_and_used_ones_last() {
        let mut pages = Pages::new(4);
        let mut known = Prefixes::new(4);
        let text = |n: u32| [n; PAGE];
        let first = pages.take().unwrap();
        let (a, page) = known.add(&mut pages, PrefixId::EMPTY, &text(1), first).unwrap();
        assert_eq!(page, first);
        let second = pages.take().unwrap();
        let (b, _) = known.add(&mut pages, a, &text(2), second).unwrap();
        // The same text in another page.
        let third = pages.take().unwrap();
        assert_eq!(known.add(&mut pages, a, &text(2), third), Some((b, second)));
        pages.release(third);
        assert_eq!(known.find(PrefixId::EMPTY, &text(2)), None);
        assert_eq!(known.find(PrefixId::EMPTY, &text(1)[1..]), None);
        let mut part = text(2);
        part[20] = 9;
        assert_eq!(known.find_part(a, &part), Some((20, second)));
        assert_eq!(known.find_part(a, &text(1)), None);
        assert!(!known.forget_one(&mut pages), "sequences use both");
        pages.release(first);
        pages.release(second);
        assert_eq!((known.unused(&pages), pages.free()), (2, 2));
        assert_eq!(known.find(a, &text(2)), Some((b, second)));
        assert!(known.forget_one(&mut pages), "the longer one");
        assert_eq!(known.find(a, &text(2)), None);
        assert_eq!(known.find(PrefixId::EMPTY, &text(1)), Some((a, first)));
        known.clear(&mut pages);
        assert_eq!((known.unused(&pages), pages.free()), (0, 4));
    }
}
