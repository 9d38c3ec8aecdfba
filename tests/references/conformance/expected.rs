//! The list of known failures.

/// Lines of `tests/references/expected_failures.txt`.
pub struct Expectations(Vec<Entry>);

struct Entry {
    line: usize,
    backend: String,
    driver: String,
    glob: String,
    reason: String,
}

/// `*` in `glob` stands for any text.
pub fn matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

impl Expectations {
    pub fn load() -> Self {
        Self::parse(include_str!("../expected_failures.txt")).unwrap_or_else(|e| panic!("{e}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for (i, line) in text
            .lines()
            .enumerate()
            .filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'))
        {
            let fields: Vec<String> = line.split('|').map(|f| f.trim().to_owned()).collect();
            let [backend, driver, glob, reason] = fields.try_into().map_err(|f: Vec<_>| {
                format!(
                    "expected_failures.txt, line {}: expected 4 fields, found {}",
                    i + 1,
                    f.len()
                )
            })?;
            if reason.is_empty() {
                return Err(format!("expected_failures.txt, line {}: no reason", i + 1));
            }
            entries.push(Entry {
                line: i + 1,
                backend,
                driver,
                glob,
                reason,
            });
        }
        Ok(Self(entries))
    }

    /// The reason why trial `name` fails, if it is expected to.
    pub fn find(&self, backend: &str, driver: &str, name: &str) -> Option<String> {
        self.0
            .iter()
            .find(|e| e.backend == backend && driver.contains(&e.driver) && matches(&e.glob, name))
            .map(|e| e.reason.clone())
    }

    /// An entry for a driver that is here must name a trial; `present` are backends with their
    /// drivers.
    pub fn check(&self, names: &[String], present: &[(String, String)]) -> Result<(), String> {
        for e in &self.0 {
            let here = present
                .iter()
                .any(|(b, d)| *b == e.backend && d.contains(&e.driver));
            if here && !names.iter().any(|n| matches(&e.glob, n)) {
                return Err(format!(
                    "expected_failures.txt, line {}: no trial matches \"{}\"",
                    e.line, e.glob
                ));
            }
        }
        // The list's own rules, which an empty list would not exercise.
        let rules = Self::parse("# head\nopencl | PoCL | Softmax/*/f16@* | wrong sums\n")?;
        let found = rules.find("opencl", "PoCL 3.1", "Softmax/3x130/f16@opencl");
        let others =
            [("wgpu", "PoCL"), ("opencl", "Intel")].map(|(b, d)| rules.find(b, d, "Softmax/3/f16@opencl"));
        if found.as_deref() != Some("wrong sums") || others != [None, None] || matches("a*b*c", "abbd") {
            return Err("matching of entries is broken".to_owned());
        }
        match Self::parse("opencl | PoCL | x") {
            Err(e) if e.contains("line 1") => Ok(()),
            _ => Err("a short line is accepted".to_owned()),
        }
    }
}
