//! How far a device's logits over a real text are from the host's.

use super::{Outcome, decoder, host_rows};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tlite_testing::{Device, Text};
use transformer_lite::unstable::backend::device_presets::Family;
use transformer_lite::unstable::backend::{Backend as _, DeviceKind};
use transformer_lite::unstable::graph::op::matmul_e0m::ActivationType;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{DeviceModel, Logits, SequenceConfig};
use transformer_lite::unstable::llm::{Activations, KvType, LanguageModel as _, Tokenizer};

/// Single tokens at the start, of which few are behind them, rows of a run of many and of one of
/// few, and single tokens behind many.
const AGREEING: [usize; 3] = [20, 220, 320];
/// The same of a shorter text, and its length: enough for the defaults, which agree almost always.
const SHORT: ([usize; 3], usize) = ([8, 108, 208], 216);

/// Types of activations and cache, with the largest mean divergence and the smallest agreement of
/// the best token.
pub type Way = (Activations, KvType, f64, f64);

/// The defaults, whose bounds are those of a right answer.
pub const FLOATS: [Way; 1] = [(Activations::Auto, KvType::Float, 1e-4, 0.985)];

/// Quantized activations have bounds of their own.
pub const BYTES: [Way; 2] = [
    (Activations::Float, KvType::Q8, 1e-3, 0.98),
    (Activations::Int8, KvType::Float, 5e-3, 0.96),
];

/// Logits of the host after each token of the text.
type Rows = (Vec<u32>, Vec<Vec<f32>>);

/// The text in tokens of the model in `dir`, with the host's logits, which are computed once.
fn host(dir: &Path) -> Result<Arc<Rows>, String> {
    static KNOWN: Mutex<Vec<(PathBuf, Arc<Rows>)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().text()?;
    if let Some((_, rows)) = known.iter().find(|(folder, _)| folder == dir) {
        return Ok(Arc::clone(rows));
    }
    let text = include_str!("../../data/pride_and_prejudice.txt");
    let ids = Tokenizer::load(dir).text()?.encode(text, true).text()?;
    let rows = host_rows(dir, &ids)?;
    let rows = Arc::new((ids, rows));
    known.push((dir.to_owned(), Arc::clone(&rows)));
    Ok(rows)
}

/// As a GPU of a family the device has the kernels for that.
#[cfg(feature = "opencl")]
pub fn of_family(dir: &Path, device: &Device, family: Family) -> Outcome {
    check(dir, device, Some(family), &[&FLOATS[..], &BYTES].concat())
}

/// Teacher-forced over real text: mean divergence from the host, over all and by each way to feed
/// tokens, and agreement of the best token.
pub fn check(dir: &Path, device: &Device, family: Option<Family>, ways: &[Way]) -> Outcome {
    let host = host(dir)?;
    let (ids, rows) = (&host.0, &host.1);
    let defaults = ways.iter().all(|way| FLOATS.contains(way));
    let (ends, count) = if device.is_slow() && defaults {
        SHORT
    } else {
        (AGREEING, ids.len())
    };
    let ids = ids.get(..count).filter(|ids| ids.len() > ends[2]);
    let Some(ids) = ids else {
        return Err(format!("the text has only {} tokens", rows.len()));
    };
    let _turn = device.turn();
    let what = family.map_or(String::new(), |family| format!(" as {family:?}"));
    for way in ways {
        let found = fed(dir, device, family, way, (ids, ends))?;
        let vocab = rows.first().map_or(1, Vec::len);
        let compared = rows.iter().zip(found.chunks(vocab)).map(|(p, q)| compared(p, q));
        within_bounds(
            &format!("{}{what}", device.kind),
            way,
            (ids.len(), ends),
            &compared.collect::<Vec<_>>(),
        )?;
    }
    Ok(())
}

/// Logits after each of `ids`, which are fed in parts with these ends.
fn fed(
    dir: &Path,
    device: &Device,
    family: Option<Family>,
    way: &Way,
    (ids, [early, many, few]): (&[u32], [usize; 3]),
) -> Result<Vec<f32>, String> {
    let share = device.share().with_caps(|caps| {
        if family.is_some() {
            caps.kind = DeviceKind::Integrated;
            caps.profile.dedicated_memory = false;
            caps.profile.set_family(family);
        }
    });
    let target = Target {
        activations: match way.0 {
            Activations::Int8 => ActivationType::Int8,
            _ if share.caps().profile.language().is_none() => ActivationType::Int16,
            _ => ActivationType::Float,
        },
        kv_q8: way.1 == KvType::Q8,
        ..Target::DEVICE
    };
    let decoder = decoder(dir, &target, Logits::All)?;
    let lengths = SequenceConfig::of(ids.len()).on(share.caps());
    let mut model = DeviceModel::new(decoder, Box::new(share), &lengths).text()?;
    let mut found = Vec::new();
    for part in [&ids[..early], &ids[early..many], &ids[many..few], &ids[few..]] {
        match part.len() {
            100.. => found.extend(model.forward_all(part).text()?),
            _ => {
                for token in part {
                    found.extend(model.forward_all(&[*token]).text()?);
                }
            }
        }
    }
    Ok(found)
}

/// Divergence of two rows of logits, and whether the best token is the same.
fn compared(wanted: &[f32], found: &[f32]) -> (f64, bool) {
    let (lp, lq) = (log_softmax(wanted), log_softmax(found));
    let divergence = lp.iter().zip(&lq).map(|(a, b)| a.exp() * (a - b)).sum::<f64>();
    (divergence, best(wanted) == best(found))
}

fn within_bounds(
    what: &str,
    way: &Way,
    (tokens, [early, many, few]): (usize, [usize; 3]),
    of: &[(f64, bool)],
) -> Outcome {
    let (act, kv, bound, agreeing) = *way;
    if of.len() != tokens {
        return Err(format!("{} rows of {tokens}", of.len()));
    }
    #[expect(clippy::cast_precision_loss, reason = "a few hundred tokens")]
    let mean = |of: &[(f64, bool)]| of.iter().map(|(d, _)| d).sum::<f64>() / of.len() as f64;
    #[expect(clippy::cast_precision_loss, reason = "a few hundred tokens")]
    let share = of.iter().filter(|(_, agrees)| *agrees).count() as f64 / of.len() as f64;
    let parts = [&of[..early], &of[early..many], &of[many..few], &of[few..]].map(mean);
    let all = mean(of);
    let figures = format!(
        "{what}, {act:?}, cache {kv:?}: mean divergence {all:.2e}, by parts {parts:.5?}, best token agrees at {:.1} % of {tokens}",
        100.0 * share
    );
    eprintln!("{figures}");
    // Of bytes the first tokens have the largest errors, whatever way they are fed: their bounds
    // are of a text.
    let exact = (act, kv) == (Activations::Auto, KvType::Float);
    let by_parts = exact && parts.iter().any(|p| *p >= bound);
    if all >= bound || by_parts || share < agreeing {
        return Err(format!("{figures}; wanted below {bound:.0e}, and at {agreeing}"));
    }
    Ok(())
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|v| f64::from(*v - max).exp()).sum();
    row.iter().map(|v| f64::from(*v - max) - sum.ln()).collect()
}

fn best(row: &[f32]) -> usize {
    row.iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .map_or(0, |(i, _)| i)
}
