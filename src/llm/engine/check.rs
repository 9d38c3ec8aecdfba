//! Whether a device computes a decoder right, found out before its first token.
//!
//! Compilers of phones' GPUs, and of new ones, are wrong now and then, for one kernel or one form of it. So each specialised kernel of which the
//! store knows nothing is compared with the reference, once for each device and driver: the plans run over a few tokens, and of one node for each
//! kernel [`Op::eval`](crate::graph::Op::eval) computes the results from the operands that the device had. A variant that is wrong, or does not
//! build, is not used any more, and the decoder is planned again without it. A kernel that has no twin is an error. Verdicts are of kernels that ran:
//! where the driver refuses images, the decoder is planned again without them.

use super::{DECODE, Decoder, DeviceDecoder, DeviceModel, PREFILL, Planned};
use crate::backend::kernel::KernelSpec;
use crate::backend::{Backend, BackendError, Caps, SharedBackend, verdicts};
use crate::cache::Store;
use crate::error::{Error, Result, Stage};
use crate::executor::{Observed, specs};
use crate::plan::Sample;
use crate::selftest;
use crate::shape::Bindings;
use std::collections::HashSet;
use std::sync::Arc;

/// Tokens of the prefill by which kernels are checked: more than one tile of rows of most kernels.
const TOKENS: usize = 12;

/// A node that a device computes wrong.
struct Fault {
    node: String,
    kernels: Vec<KernelSpec>,
    why: String,
}

impl Planned {
    /// Kernels of which `store` knows nothing on a device with `caps`: they are compiled and checked when it is loaded.
    pub fn new_kernels(&self, caps: &Caps, store: Option<&Store>) -> usize {
        let known = |spec: &KernelSpec| store.is_some_and(|s| verdicts::is_right(s, caps, spec));
        let all = specs(&self.plans.plans);
        all.into_iter().filter(|spec| !known(spec)).count()
    }
}

/// What comparing kernels with the reference has found.
#[derive(Default)]
struct Found {
    /// Kernels that were compared.
    judged: usize,
    /// Those that could not be.
    unjudged: Vec<String>,
    faults: Vec<Fault>,
    /// Other kernels ran than were planned, as the driver refuses images.
    without_images: bool,
}

impl DeviceDecoder {
    /// As [`DeviceDecoder::load`], with kernels that are checked, as far as `store` does not know them. Returns what there is to note, too. Errors
    /// beside those: a kernel that has no twin gives wrong results.
    pub fn checked(
        decoder: Decoder,
        backend: Box<dyn Backend>,
        mut planned: Planned,
        may_be_shorter: bool,
        store: Option<&Store>,
        hear: &mut dyn FnMut(usize, usize),
    ) -> Result<(Self, Vec<String>)> {
        let (decoder, mut backend) = (Arc::new(decoder), SharedBackend::new(backend));
        let (mut notes, mut checked) = (Vec::new(), 0);
        notes.extend(known(backend.caps()));
        loop {
            let lengths = planned.lengths;
            let mut bad = unbuilt(&mut backend, &planned);
            if bad.is_empty() {
                let mut loaded = Self::load(decoder.clone(), backend.clone(), planned, hear)?;
                let found = loaded.check(store)?;
                checked += found.judged;
                if found.without_images {
                    drop(loaded);
                    backend = backend.without_images();
                    planned = decoder.plan_for(backend.caps(), &lengths, may_be_shorter)?;
                    continue;
                }
                if found.faults.is_empty() {
                    loaded.checked = checked;
                    notes.extend(unjudged(backend.caps(), &found.unjudged));
                    return Ok((loaded, notes));
                }
                for fault in found.faults {
                    bad.extend(blame(backend.caps(), fault)?);
                }
            }
            for (spec, why) in bad {
                for variant in to_leave(&spec) {
                    let caps = backend.caps();
                    if caps.is_quarantined(spec.kernel, &variant) {
                        continue;
                    }
                    notes.push(format!(
                        "note: kernel {variant} {why} on {} ({}) and is not used there; results are right, perhaps slower; \
                         `tlite selftest` says more",
                        caps.device, caps.driver
                    ));
                    log::debug!("kernel {spec} {why}");
                    backend = backend.without(spec.kernel, &variant, &why);
                }
            }
            if let Some(store) = store {
                verdicts::keep_quarantined(store, backend.caps());
            }
            planned = decoder.plan_for(backend.caps(), &lengths, may_be_shorter)?;
        }
    }

    /// Compares the kernels that `store` does not know with the reference; an error for the first that is wrong.
    pub(super) fn check_all(&self, store: Option<&Store>) -> Result<()> {
        let first = self.check(store)?.faults.into_iter().next();
        first.map_or(Ok(()), |fault| Err(wrong(self.program.caps(), fault)))
    }

    /// Kernels that were compared with the reference while it was loaded.
    pub fn checked_kernels(&self) -> usize {
        self.checked
    }

    /// Compares the kernels that `store` does not know with the reference; what is right is kept.
    fn check(&self, store: Option<&Store>) -> Result<Found> {
        let caps = self.program.caps();
        let is_known = |spec: &KernelSpec| store.is_some_and(|s| verdicts::is_right(s, caps, spec));
        let kernels = self.program.kernels();
        let by_image = kernels.iter().any(|spec| !spec.images.is_empty());
        let new: HashSet<&KernelSpec> = kernels.into_iter().filter(|spec| !is_known(spec)).collect();
        let (mut judged, mut faults) = (HashSet::new(), Vec::new());
        if by_image || !new.is_empty() {
            // Images are made with it.
            let mut model = self.model()?;
            if !new.is_empty() {
                log::debug!("{} kernels are checked", new.len());
                model.observe(&new, &mut |kernels, observed| {
                    let verdict = selftest::judge(observed);
                    if verdict != Ok(false) {
                        judged.extend(kernels.clone());
                    }
                    if let Err(why) = verdict {
                        faults.push(Fault {
                            node: observed.name.clone(),
                            kernels,
                            why,
                        });
                    }
                })?;
            }
        }
        if by_image && self.program.refuses_images() {
            return Ok(Found {
                without_images: true,
                ..Found::default()
            });
        }
        let wrong: HashSet<&KernelSpec> = faults.iter().flat_map(|f| &f.kernels).collect();
        let (judged, unjudged): (Vec<&KernelSpec>, Vec<&KernelSpec>) =
            new.into_iter().partition(|spec| judged.contains(*spec));
        if let Some(store) = store {
            for spec in judged.iter().filter(|spec| !wrong.contains(**spec)) {
                verdicts::keep_right(store, caps, spec);
            }
        }
        Ok(Found {
            judged: judged.len(),
            unjudged: unjudged.into_iter().map(ToString::to_string).collect(),
            faults,
            without_images: false,
        })
    }
}

/// The variants of a kernel that are left first: images alone, without which its other forms may be right.
fn to_leave(spec: &KernelSpec) -> Vec<String> {
    let mut all = spec.variants();
    if !spec.images.is_empty() {
        all.truncate(1);
    }
    all
}

/// A note of the variants that earlier starts have left.
fn known(caps: &Caps) -> Option<String> {
    let names = caps
        .quarantined
        .iter()
        .map(|q| format!("{} {}", q.variant, q.why));
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| {
        format!(
            "note: kernels that are not used on {} ({}), as found earlier: {}",
            caps.device,
            caps.driver,
            names.join("; ")
        )
    })
}

/// A note of kernels that could not be compared.
fn unjudged(caps: &Caps, kernels: &[String]) -> Option<String> {
    let first = kernels.iter().min()?;
    Some(format!(
        "note: {} kernels could not be checked on {} ({}), such as {first}",
        kernels.len(),
        caps.device,
        caps.driver
    ))
}

/// The variants behind a fault; an error where there are none.
fn blame(caps: &Caps, fault: Fault) -> Result<Vec<(KernelSpec, String)>> {
    let variants = fault.kernels.iter().filter(|spec| !spec.variants().is_empty());
    let why = format!("gives wrong results ({})", fault.why);
    let variants: Vec<_> = variants.map(|spec| (spec.clone(), why.clone())).collect();
    if !variants.is_empty() {
        return Ok(variants);
    }
    Err(wrong(caps, fault))
}

/// The error of a fault.
fn wrong(caps: &Caps, fault: Fault) -> Error {
    let names: Vec<String> = fault.kernels.iter().map(ToString::to_string).collect();
    let wrong = BackendError::Wrong {
        kernel: names.join(" or "),
        device: format!("{} ({})", caps.device, caps.driver),
        why: fault.why,
    };
    Error::device(Stage::Plan, format!("checking node \"{}\"", fault.node), wrong)
}

/// The variants that do not build, compiled before anything is uploaded.
fn unbuilt(backend: &mut SharedBackend, planned: &Planned) -> Vec<(KernelSpec, String)> {
    let mut variants = specs(&planned.plans.plans);
    variants.retain(|spec| !spec.variants().is_empty());
    if variants.is_empty() {
        return Vec::new();
    }
    backend.compile_ahead(&variants, &mut |_| {});
    let refused = variants
        .into_iter()
        .filter_map(|spec| match backend.compile(spec) {
            Err(e @ (BackendError::Build { .. } | BackendError::Unsuited { .. })) => {
                log::debug!("{e}");
                Some((spec.clone(), "does not build".to_owned()))
            }
            // Of anything else, as of a lost device or too little memory, loading tells: another time it may build.
            _ => None,
        });
    refused.collect()
}

impl DeviceModel {
    /// Runs each plan over a few tokens, and gives `take` a node for each of the kernels `new`, with those of its kernels that ran. The cache is
    /// empty afterwards.
    fn observe(
        &mut self,
        new: &HashSet<&KernelSpec>,
        take: &mut dyn FnMut(Vec<KernelSpec>, &Observed),
    ) -> Result<()> {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (context, rows) = (self.lengths.context, self.lengths.rows.max(1));
        let first = TOKENS
            .min(self.lengths.chunk)
            .min(context.saturating_sub(rows))
            .max(1);
        // Runs behind these tokens have room for theirs.
        let past = first.min(context.saturating_sub(rows));
        let mut runs: Vec<(usize, usize, usize, Bindings)> =
            vec![(PREFILL, first, 0, self.decoder.bindings(first, 0))];
        if self.decoder.keeps_cache {
            let one = |plan: usize, model: &Self| {
                let mut bindings = model.decoder.bindings(1, past);
                bindings.remove(&model.decoder.sequence);
                (plan, 1, past, bindings)
            };
            runs.push(one(DECODE, self));
            runs.extend(self.short_decode.map(|(plan, _)| one(plan, self)));
            if let (Some(plan), Some(symbol)) = (self.verify, &self.decoder.rows) {
                let mut bindings = self.decoder.bindings(rows, past);
                bindings.set(symbol, number(rows));
                runs.push((plan, rows, past, bindings));
            }
        }
        let mut done: HashSet<KernelSpec> = HashSet::new();
        for (plan, count, past, bindings) in runs {
            let Some(planned) = self.executor.plan(plan) else {
                continue;
            };
            let kernels = planned.kernels.clone();
            let steps: Vec<usize> = planned.steps.iter().map(|s| s.kernel).collect();
            let of = |sample: &Sample| {
                let all = sample.steps.iter().filter_map(|s| kernels.get(*steps.get(*s)?));
                all.collect::<Vec<_>>()
            };
            let wanted = |sample: &Sample| {
                let mut all = of(sample).into_iter();
                all.any(|spec| new.contains(spec) && !done.contains(spec))
            };
            let any = planned.samples.iter().any(wanted);
            // What follows reads the cache that the first run writes.
            if !any && plan != PREFILL {
                continue;
            }
            let vocab = self.decoder.vocab.max(1);
            let tokens = (0..count).map(|i| u32::try_from((i * 37 + 5) % vocab).unwrap_or(0));
            let tokens: Vec<u32> = tokens.collect();
            for (name, tensor) in self.decoder.inputs_of(plan, &tokens, past)? {
                self.executor.write(plan, name, &tensor)?;
            }
            for observed in self.executor.observe(plan, &bindings, &wanted)? {
                let own = observed.kernels.iter().filter_map(|k| kernels.get(*k).cloned());
                let own: Vec<KernelSpec> = own.collect();
                done.extend(own.iter().cloned());
                take(own, &observed);
            }
        }
        Ok(())
    }
}
