//! Pages of a cache that sequences share, and the cached prefixes that end with a full page.

use crate::graph::op::paged_attention::PAGE;
use std::cmp::Reverse;
use std::collections::HashMap;

/// A page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    uses: u32,
    /// One of them is that of a cached prefix.
    known: bool,
}

/// Reference counts of the pages.
#[derive(Debug)]
pub(super) struct Pages {
    all: Vec<Page>,
    free: Vec<u32>,
    /// Number of pages that only cached prefixes use.
    unused: usize,
}

impl Pages {
    pub fn new(count: usize) -> Self {
        let mut free: Vec<u32> = (0..).take(count).collect();
        free.reverse();
        Self {
            all: vec![Page::default(); count],
            free,
            unused: 0,
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
        self.change(page, |page| page.uses += 1);
    }

    /// Removes a user.
    pub fn release(&mut self, page: u32) {
        self.change(page, |page| page.uses = page.uses.saturating_sub(1));
    }

    /// Number of uses of a page.
    pub fn uses(&self, page: u32) -> u32 {
        let at = usize::try_from(page).ok();
        at.and_then(|at| self.all.get(at)).map_or(0, |page| page.uses)
    }

    /// Number of pages that nothing uses.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of pages that only cached prefixes use.
    pub fn unused(&self) -> usize {
        self.unused
    }

    /// Number of all pages.
    pub fn all(&self) -> usize {
        self.all.len()
    }

    /// Adds or removes the use of a page by a cached prefix.
    fn set_known(&mut self, page: u32, known: bool) {
        self.change(page, |page| {
            page.uses = if known {
                page.uses + 1
            } else {
                page.uses.saturating_sub(1)
            };
            page.known = known;
        });
    }

    fn change(&mut self, page: u32, change: impl FnOnce(&mut Page)) {
        let entry = usize::try_from(page).ok().and_then(|at| self.all.get_mut(at));
        let Some(entry) = entry else { return };
        let before = *entry;
        change(entry);
        let unused = |page: &Page| usize::from(page.known && page.uses == 1);
        self.unused = self.unused + unused(entry) - unused(&before);
        if entry.uses == 0 && before.uses > 0 {
            self.free.push(page);
        }
    }
}

/// A prefix of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PrefixId(u64);

impl PrefixId {
    /// The prefix without tokens.
    pub const EMPTY: Self = Self(0);
}

/// A prefix that is one page longer than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    before: PrefixId,
    tokens: [u32; PAGE],
}

#[derive(Debug)]
struct Prefix {
    key: Key,
    /// The page with the last tokens. The prefix is one of its users.
    page: u32,
    used: u64,
}

/// A tree of the prefixes whose keys and values are cached; each edge is a page. Pages that no
/// sequence uses stay until [`Prefixes::forget_one`] evicts them.
#[derive(Debug)]
pub(super) struct Prefixes {
    ids: HashMap<Key, PrefixId>,
    known: HashMap<PrefixId, Prefix>,
    /// The prefixes that are one page longer than another.
    longer: HashMap<PrefixId, Vec<PrefixId>>,
    /// Prefixes to evict, the next one last, and when they were used. Those used since then stay.
    oldest: Vec<(u64, PrefixId)>,
    count: u64,
    clock: u64,
}

impl Prefixes {
    /// Room for the texts of `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self {
            ids: HashMap::with_capacity(pages),
            known: HashMap::with_capacity(pages),
            longer: HashMap::new(),
            oldest: Vec::new(),
            count: 0,
            clock: 0,
        }
    }

    fn key(before: PrefixId, tokens: &[u32]) -> Option<Key> {
        let tokens = <[u32; PAGE]>::try_from(tokens).ok()?;
        Some(Key { before, tokens })
    }

    /// The page of a prefix, which is used now.
    fn touch(&mut self, id: PrefixId) -> Option<u32> {
        self.clock += 1;
        let prefix = self.known.get_mut(&id)?;
        prefix.used = self.clock;
        Some(prefix.page)
    }

    /// The prefix `before` extended by `tokens`, a whole page, and the page that holds them.
    pub fn find(&mut self, before: PrefixId, tokens: &[u32]) -> Option<(PrefixId, u32)> {
        let id = *self.ids.get(&Self::key(before, tokens)?)?;
        Some((id, self.touch(id)?))
    }

    /// The longest common prefix of `tokens` and a page after `before`: its length, and that page.
    pub fn find_part(&mut self, before: PrefixId, tokens: &[u32]) -> Option<(usize, u32)> {
        let common = |id: &PrefixId| {
            let other = self.known.get(id)?.key.tokens;
            Some((other.iter().zip(tokens).take_while(|(a, b)| a == b).count(), *id))
        };
        let next = self.longer.get(&before)?.iter().filter_map(common);
        let (count, id) = next.max_by_key(|(count, id)| (*count, id.0))?;
        let page = self.touch(id)?;
        (count > 0).then_some((count, page))
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
        self.count += 1;
        let (id, used) = (PrefixId(self.count), self.clock);
        self.ids.insert(key, id);
        self.known.insert(id, Prefix { key, page, used });
        self.longer.entry(before).or_default().push(id);
        pages.set_known(page, true);
        Some((id, page))
    }

    /// Evicts a prefix that was not used for a long time, whose page no sequence uses, and that no
    /// cached prefix extends. Returns false if there is none.
    pub fn forget_one(&mut self, pages: &mut Pages) -> bool {
        if pages.unused() == 0 {
            return false;
        }
        for _ in 0..2 {
            while let Some((used, id)) = self.oldest.pop() {
                if let Some(prefix) = self.known.get(&id)
                    && prefix.used == used
                    && self.is_unused(id, pages)
                {
                    let before = prefix.key.before;
                    self.forget(id, pages);
                    // The shorter prefix was last used just before this one.
                    if let Some(shorter) = self.known.get(&before)
                        && self.is_unused(before, pages)
                    {
                        self.oldest.push((shorter.used, before));
                    }
                    return true;
                }
            }
            let all = self.known.iter().filter(|(id, _)| self.is_unused(**id, pages));
            self.oldest = all.map(|(id, prefix)| (prefix.used, *id)).collect();
            self.oldest.sort_unstable_by_key(|(used, _)| Reverse(*used));
        }
        false
    }

    /// Whether no sequence uses the page of a prefix and no cached prefix extends it.
    fn is_unused(&self, id: PrefixId, pages: &Pages) -> bool {
        let page = self.known.get(&id).map(|prefix| prefix.page);
        !self.longer.contains_key(&id) && page.is_some_and(|page| pages.uses(page) == 1)
    }

    fn forget(&mut self, id: PrefixId, pages: &mut Pages) {
        let Some(Prefix { key, page, .. }) = self.known.remove(&id) else {
            return;
        };
        self.ids.remove(&key);
        if let Some(longer) = self.longer.get_mut(&key.before) {
            longer.retain(|other| *other != id);
            if longer.is_empty() {
                self.longer.remove(&key.before);
            }
        }
        pages.set_known(page, false);
    }

    /// Evicts all prefixes.
    pub fn clear(&mut self, pages: &mut Pages) {
        for (_, prefix) in self.known.drain() {
            pages.set_known(prefix.page, false);
        }
        self.ids.clear();
        self.longer.clear();
        self.oldest.clear();
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
        assert_eq!((pages.unused(), pages.free()), (2, 2));
        assert_eq!(known.find(a, &text(2)), Some((b, second)));
        assert!(known.forget_one(&mut pages), "the longer one");
        assert_eq!(known.find(a, &text(2)), None);
        assert_eq!(known.find(PrefixId::EMPTY, &text(1)), Some((a, first)));
        known.clear(&mut pages);
        assert_eq!((pages.unused(), pages.free()), (0, 4));
    }
}
