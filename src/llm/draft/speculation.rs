//! How many tokens to draft.

use super::Draft;
use crate::error::Result;
use crate::llm::Cancel;
use std::time::{Duration, Instant};

/// Drafts are used only if their expected speed is at least this many times that of single steps.
const GAIN: f64 = 1.1;
/// Assumed cost of each further row of a run before any is measured, as a share of a single step.
const ROW: f64 = 0.25;
/// Weight of the past in an acceptance rate, for each newer token.
const DECAY: f64 = 0.9;
/// The time of a run counts as unknown after this many others.
const STALE: usize = 256;
/// Share of the run time that may be spent on drafts that are only compared, not used.
const WATCH: f64 = 0.01;
/// An acceptance rate counts as known if its [`Rate::all`] exceeds this.
const KNOWN: f64 = 3.0;
/// Largest kind of a proposal.
const KINDS: usize = 63;

/// A draft, and how many of its tokens to use: the number with the highest expected speed, given
/// the acceptance rate and the run times measured so far. If no draft pays, the model decodes token
/// by token. The first token of some proposals is then compared with the model's choice, so that
/// the acceptance rate stays up to date.
pub struct Speculation {
    draft: Box<dyn Draft>,
    most: usize,
    /// Always use `most` tokens.
    is_fixed: bool,
    /// Times of runs, by number of rows less one.
    runs: Vec<Option<RunTime>>,
    /// Acceptance rate of each kind of proposal ([`Draft::kind`]).
    rates: Vec<Rate>,
    /// Seconds to propose a token.
    token: Mean,
    /// Runs so far.
    count: usize,
    /// Seconds of all runs, and of proposals that were only watched.
    spent: [f64; 2],
    /// The kind and the first token of the proposal that is watched.
    watched: Option<(usize, u32)>,
    /// Kind of the proposal in use.
    kind: usize,
}

/// An average that follows changes.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, sample: f64) {
        self.count = (self.count + 1).min(8);
        // One outlier must not decide.
        let sample = match self.value > 0.0 {
            true => sample.min(2.0 * self.value),
            false => sample,
        };
        self.value += (sample - self.value) / f64::from(self.count);
    }
}

#[derive(Clone, Copy, Debug)]
struct RunTime {
    seconds: Mean,
    /// The run that was measured last.
    last: usize,
}

/// How often a drafted token is right if those before it are.
#[derive(Clone, Copy, Debug)]
struct Rate {
    right: f64,
    all: f64,
}

impl Rate {
    /// Initial rate of the first kind. It is too low for drafting to start before a compared token
    /// was right.
    const UNKNOWN: f64 = 0.3;

    /// A rate that the next few tokens can change.
    fn guessed(value: f64) -> Self {
        Self {
            right: value,
            all: 1.0,
        }
    }

    fn add(&mut self, right: bool) {
        self.right = self.right * DECAY + f64::from(u8::from(right));
        self.all = self.all * DECAY + 1.0;
    }

    fn value(&self) -> f64 {
        self.right / self.all
    }
}

impl Speculation {
    /// Uses up to `most` tokens of `draft`.
    pub fn adaptive(draft: Box<dyn Draft>, most: usize) -> Self {
        Self {
            draft,
            most,
            is_fixed: false,
            runs: Vec::new(),
            rates: Vec::new(),
            token: Mean::default(),
            count: 0,
            spent: [0.0; 2],
            watched: None,
            kind: 0,
        }
    }

    /// Always uses as many tokens as `draft` proposes, up to `most`.
    pub fn fixed(draft: Box<dyn Draft>, most: usize) -> Self {
        Self {
            is_fixed: true,
            ..Self::adaptive(draft, most)
        }
    }

    /// Forgets everything measured.
    pub fn reset(&mut self) {
        (self.count, self.spent) = (0, [0.0; 2]);
        self.runs.clear();
        self.rates.clear();
        self.token = Mean::default();
    }

    /// Forgets what was not used of the last proposal, at the start of a text.
    pub(crate) fn start(&mut self) {
        self.watched = None;
    }

    /// Tokens that may follow `context`, to be verified in one run: at most `room`, and none if
    /// decoding is faster without. Errors of the draft.
    pub(crate) fn propose(&mut self, context: &[u32], room: usize, cancel: &Cancel) -> Result<Vec<u32>> {
        self.watched = None;
        let most = self.most.min(room);
        if most == 0 {
            return Ok(Vec::new());
        }
        if self.is_fixed {
            return self.draft.propose(context, most, cancel);
        }
        let Some(kind) = self.draft.kind(context) else {
            return Ok(Vec::new());
        };
        self.kind = kind;
        let length = self.length(kind, most);
        let [all, watching] = self.spent;
        // The first proposals may cost more: a model has to read the context.
        let is_known = self.rate(kind).all > KNOWN;
        if length == 0 && is_known && watching > WATCH * all {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let mut tokens = self.draft.propose(context, length.max(1), cancel)?;
        let time = start.elapsed().as_secs_f64();
        if length == 0 {
            self.spent[1] += time;
            self.watched = tokens.first().map(|token| (kind, *token));
            tokens.clear();
        } else {
            self.token.add(time / tokens.len().max(1) as f64);
        }
        Ok(tokens)
    }

    /// A run of `rows` rows after [`Speculation::propose`] took `time`.
    pub(crate) fn ran(&mut self, rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.spent[0] += seconds;
        let Some(at) = rows.checked_sub(1) else { return };
        if self.runs.len() <= at {
            self.runs.resize(at + 1, None);
        }
        if let Some(slot) = self.runs.get_mut(at) {
            let run = slot.get_or_insert(RunTime {
                seconds: Mean::default(),
                last: 0,
            });
            run.seconds.add(seconds);
            run.last = self.count;
        }
    }

    /// The model chose `token` in a run without drafted tokens.
    pub(crate) fn chose(&mut self, token: u32) {
        if let Some((kind, drafted)) = self.watched.take() {
            self.rate(kind).add(drafted == token);
        }
    }

    /// The model chose the next drafted token, or another one.
    pub(crate) fn verified(&mut self, right: bool) {
        self.rate(self.kind).add(right);
    }

    /// The rate of a kind. It starts with the current rate of the next lower kind.
    fn rate(&mut self, kind: usize) -> &mut Rate {
        let kind = kind.min(KINDS);
        while self.rates.len() <= kind {
            let before = self.rates.last().map_or(Rate::UNKNOWN, Rate::value);
            self.rates.push(Rate::guessed(before));
        }
        &mut self.rates[kind]
    }

    /// The time of a run of each number of rows up to `most`, in seconds; `None` before a single
    /// step is measured.
    fn times(&self, most: usize) -> Option<Vec<f64>> {
        let known = |run: &Option<RunTime>| {
            let run = run.filter(|run| run.last + STALE > self.count)?;
            Some(run.seconds.value)
        };
        let single = self.runs.first()?.map(|run| run.seconds.value)?;
        let mut times: Vec<Option<f64>> = self.runs.iter().map(known).collect();
        times.resize(most.max(times.len()), None);
        times[0] = Some(single);
        // More rows never take less time.
        let mut least = f64::INFINITY;
        for time in times.iter_mut().rev().flatten() {
            least = least.min(*time);
            *time = least;
        }
        // Between two known times on a line, after the last as steep as before.
        let (mut at, mut slope) = (0, ROW * least);
        let mut all = vec![least];
        while all.len() < times.len() {
            let from = all[at];
            let next = (at + 1..times.len()).find_map(|i| Some((i, times[i]?)));
            if let Some((i, time)) = next {
                slope = (time - from) / (i - at) as f64;
            }
            let end = next.map_or(times.len() - 1, |(i, _)| i);
            all.extend((at + 1..=end).map(|i| from + slope * (i - at) as f64));
            at = end;
        }
        Some(all)
    }

    /// The number of tokens, up to `most`, with which decoding is fastest.
    fn length(&mut self, kind: usize, most: usize) -> usize {
        let Some(times) = self.times(most + 1) else {
            return 0;
        };
        let rate = self.rate(kind).value();
        let (mut best, mut length) = (GAIN / times[0], 0);
        let (mut expected, mut power) = (1.0, 1.0);
        for (n, time) in times.iter().enumerate().take(most + 1).skip(1) {
            power *= rate;
            expected += power;
            let speed = expected / (time + n as f64 * self.token.value);
            if speed > best {
                (best, length) = (speed, n);
            }
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::sampler::SplitMix64;

    /// Proposes ones; the kind is the last token of the context.
    struct Ones;

    impl Draft for Ones {
        fn propose(&mut self, _: &[u32], most: usize, _: &Cancel) -> Result<Vec<u32>> {
            Ok(vec![1; most])
        }

        fn kind(&self, context: &[u32]) -> Option<usize> {
            context.last().and_then(|kind| usize::try_from(*kind).ok())
        }
    }

    /// Steps on a device on which a run of n rows takes `time(n)` milliseconds, for a draft of kind
    /// `kind` of whose tokens `right` in 20 are right. Returns tokens per millisecond.
    fn simulate(
        speculation: &mut Speculation,
        kind: u32,
        steps: usize,
        right: u64,
        time: impl Fn(usize) -> f64,
    ) -> f64 {
        let (mut tokens, mut spent, mut random) = (0, 0.0, SplitMix64::new(3));
        let mut next = || random.next_u64() % 20 < right;
        for _ in 0..steps {
            let guess = speculation.propose(&[kind], 15, &Cancel::default()).unwrap();
            let rows = 1 + guess.len();
            let mut verified = true;
            for _ in &guess {
                verified = next();
                speculation.verified(verified);
                tokens += 1;
                if !verified {
                    break;
                }
            }
            // One more if all are right.
            if verified {
                let token = u32::from(next());
                if guess.is_empty() {
                    speculation.chose(token);
                }
                tokens += 1;
            }
            spent += time(rows);
            speculation.ran(rows, Duration::from_secs_f64(time(rows) / 1e3));
        }
        f64::from(tokens) / spent
    }

    #[test]
    fn lengths_follow_times_and_acceptance() {
        let ones = || Speculation::adaptive(Box::new(Ones), 15);
        // Rows are almost free: long drafts.
        let gpu = |rows: usize| if rows == 1 { 1.0 } else { 1.2 };
        let speed = simulate(&mut ones(), 0, 300, 19, gpu);
        assert!(speed > 5.5, "{speed}");
        // Each row costs half a step.
        let cpu = |rows: usize| 0.5 + 0.5 * rows as f64;
        let speed = simulate(&mut ones(), 0, 300, 19, cpu);
        assert!(speed > 1.4, "{speed}");
        // Each row costs a step, or drafts are never right: none.
        let flat = |rows: usize| rows as f64;
        for (right, time) in [(19, &flat as &dyn Fn(usize) -> f64), (0, &cpu), (0, &gpu)] {
            let speed = simulate(&mut ones(), 0, 300, right, time);
            assert!(speed > 0.97, "{speed}");
        }
    }

    #[test]
    fn a_draft_that_becomes_right_is_used_again() {
        let mut ones = Speculation::adaptive(Box::new(Ones), 15);
        let cpu = |rows: usize| 0.7 + 0.3 * rows as f64;
        simulate(&mut ones, 0, 100, 0, cpu);
        assert!(ones.propose(&[0], 15, &Cancel::default()).unwrap().is_empty());
        let speed = simulate(&mut ones, 0, 100, 19, cpu);
        assert!(speed > 1.7, "{speed}");
        // Kinds are apart.
        simulate(&mut ones, 2, 100, 0, cpu);
        assert!(ones.propose(&[2], 15, &Cancel::default()).unwrap().is_empty());
        assert!(ones.propose(&[0], 15, &Cancel::default()).unwrap().len() > 2);
        ones.reset();
        assert!(
            ones.propose(&[0], 15, &Cancel::default()).unwrap().is_empty(),
            "the time of a step is unknown"
        );
    }

    /// Is right, but takes long to begin.
    struct Slow {
        begun: bool,
    }

    impl Draft for Slow {
        fn propose(&mut self, _: &[u32], most: usize, _: &Cancel) -> Result<Vec<u32>> {
            if !std::mem::replace(&mut self.begun, true) {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(vec![1; most])
        }
    }

    #[test]
    fn a_slow_start_does_not_end_drafting() {
        let mut slow = Speculation::adaptive(Box::new(Slow { begun: false }), 15);
        let cpu = |rows: usize| 0.7 + 0.3 * rows as f64;
        let speed = simulate(&mut slow, 0, 50, 20, cpu);
        assert!(speed > 1.5, "{speed}");
        // Kinds have no limit that a caller could exceed.
        assert!(slow.rate(usize::MAX).value() > 0.0);
    }

    #[test]
    fn unknown_times_continue_known_ones() {
        let mut ones = Speculation::adaptive(Box::new(Ones), 15);
        assert_eq!(ones.times(4), None);
        let mut ran = |rows, ms| ones.ran(rows, Duration::from_millis(ms));
        ran(1, 100);
        ran(3, 140);
        ran(2, 900);
        ran(5, 120);
        let times: Vec<f64> = ones.times(7).unwrap().iter().map(|s| (s * 1e3).round()).collect();
        // Five rows took 120 ms, so fewer take no longer.
        assert_eq!(times, [100.0, 120.0, 120.0, 120.0, 120.0, 120.0, 120.0]);
        ones.reset();
        ones.ran(1, Duration::from_millis(50));
        ones.ran(2, Duration::from_millis(6));
        let times: Vec<f64> = ones.times(4).unwrap().iter().map(|s| (s * 1e3).round()).collect();
        assert_eq!(times, [6.0; 4], "the first step was slow");
        ones.reset();
        ones.ran(1, Duration::from_millis(100));
        let times: Vec<f64> = ones.times(3).unwrap().iter().map(|s| (s * 1e3).round()).collect();
        assert_eq!(times, [100.0, 125.0, 150.0]);
    }
}
