//! The objects in the outputs of detectors.
//!
//! The known forms, in which `n` boxes have `c` classes:
//!
//! | outputs | models | boxes |
//! |---|---|---|
//! | `[1, 4 + c, n]` | `YOLOv8`, `YOLO11` and later | center and size in pixels of the input |
//! | `[1, n, 5 + c]` | `YOLOv5`, `YOLOv7` | as above; then how likely there is an object |
//! | `[1, n, 6]` | `YOLOv10`, `YOLO26` | corners in pixels, score, class; without duplicates |
//! | `[1, n, 4]` and `[1, n, c]` | SSD, `YOLO-NAS` | corners in pixels, or as parts of the input |
//! | `[1, n, 4]`, `[1, n]`, `[1, n]` | SSD with suppression | corners as above, classes, scores |
//!
//! The masks of segmenting YOLO models are ignored. Scores must be probabilities.

use super::labels::MAX_CLASSES;
use super::picture::Prepared;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::runner::Named;
use crate::tensor::HostTensor;
use serde::Serialize;

/// Share of the union that two boxes of a class may have in common (Jaccard index).
pub const MAX_OVERLAP: f32 = 0.45;
/// Objects of a picture at most: the most likely ones.
pub const MAX_OBJECTS: usize = 300;
/// Boxes that are compared at most: the most likely ones.
const MAX_CANDIDATES: usize = 30_000;
/// Boxes of a model that has suppressed duplicates.
const MAX_FINAL: usize = 1000;

/// Boxes as parts of the input may reach beyond it by this much.
const MAX_PART: f32 = 2.0;
/// The largest coordinate of boxes in pixels is at least this.
const MIN_PIXELS: f32 = 8.0;

/// An object in a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Found {
    /// Number of the class.
    pub class: usize,
    /// Name of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Probability.
    pub score: f32,
    /// Left, top, right and bottom in pixels of the picture; what lies outside of it is cut off.
    #[serde(rename = "box")]
    pub edges: [f32; 4],
}

/// How a detector's outputs hold objects. The numbers are positions in the list of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `[1, 4 + c, n]`.
    Columns { output: usize, classes: usize },
    /// `[1, n, 5 + c]`.
    Rows { output: usize, classes: usize },
    /// `[1, n, 6]`.
    Final { output: usize },
    /// `[1, n, 4]` and `[1, n, c]`.
    Pair {
        boxes: usize,
        scores: usize,
        classes: usize,
    },
    /// Boxes, classes and scores. `top_first`: the corners are top, left, bottom, right.
    Triple {
        boxes: usize,
        classes: usize,
        scores: usize,
        top_first: bool,
    },
}

/// A box before suppression: left, top, right and bottom in pixels of the input.
struct Candidate {
    class: usize,
    score: f32,
    edges: [f32; 4],
}

/// The error for outputs of an unknown form.
fn unknown(outputs: &[Named], why: &str) -> Error {
    let shapes = outputs.iter().map(|(name, t)| format!("{name} {t:?}"));
    let shapes: Vec<String> = shapes.collect();
    let what = format!(
        "the outputs are not those of a supported detector: {}{why}; supported: [1, 4 + classes, n], [1, n, 5 + classes], \
         [1, n, 6], and boxes [1, n, 4] with scores [1, n, classes] or with classes and scores [1, n]",
        shapes.join(", ")
    );
    Error::other(Stage::Run, what).of_kind(ErrorKind::Unsupported)
}

/// The numbers of cells in the grids of YOLO models for an input of this size.
fn cells((width, height): (u32, u32)) -> [usize; 3] {
    let grid = |stride: u32| width.div_ceil(stride) as usize * height.div_ceil(stride) as usize;
    let usual = grid(8) + grid(16) + grid(32);
    [usual, usual + grid(64), grid(16) + grid(32)]
}

impl Form {
    /// `classes` is their number, where it is known.
    fn of(outputs: &[Named], size: (u32, u32), classes: Option<usize>) -> Result<Self> {
        let found = Self::triple(outputs).or_else(|| Self::pair(outputs));
        if let Some(form) = found.or_else(|| Self::single(outputs, size)) {
            return form.with_classes(outputs, classes);
        }
        Err(unknown(outputs, ""))
    }

    fn triple(outputs: &[Named]) -> Option<Self> {
        // The names that TensorFlow gives.
        let named = |what: &str| {
            let is_one = |(name, _): &Named| name.split(':').next() == Some(what);
            outputs.iter().position(is_one)
        };
        if let (Some(boxes), Some(classes), Some(scores)) = (
            named("detection_boxes"),
            named("detection_classes"),
            named("detection_scores"),
        ) {
            return Some(Self::Triple {
                boxes,
                classes,
                scores,
                top_first: true,
            });
        }
        let boxes = outputs
            .iter()
            .position(|(_, t)| t.dtype().is_float() && t.shape().last() == Some(&4))?;
        let [rows @ .., 4] = outputs.get(boxes)?.1.shape() else {
            return None;
        };
        let list = |float: bool| {
            let fits = |(_, t): &Named| t.shape() == rows && t.dtype().is_float() == float;
            outputs.iter().position(fits)
        };
        let (classes, scores) = (list(false)?, list(true)?);
        matches!(rows, [_] | [1, _]).then_some(Self::Triple {
            boxes,
            classes,
            scores,
            top_first: false,
        })
    }

    fn pair(outputs: &[Named]) -> Option<Self> {
        let [(first, a), (_, b)] = outputs else {
            return None;
        };
        let ([1, n, x], [1, m, y]) = (a.shape(), b.shape()) else {
            return None;
        };
        if n != m || [a, b].iter().any(|t| !t.dtype().is_float()) {
            return None;
        }
        let boxes = match (x, y) {
            (4, 4) => usize::from(!first.to_lowercase().contains("box")),
            (4, _) => 0,
            (_, 4) => 1,
            _ => return None,
        };
        Some(Self::Pair {
            boxes,
            scores: 1 - boxes,
            classes: if boxes == 0 { *y } else { *x },
        })
    }

    /// The output of a YOLO model, of which others may hold masks.
    fn single(outputs: &[Named], size: (u32, u32)) -> Option<Self> {
        let is_one = |(_, t): &Named| matches!(t.shape(), [1, _, _]) && t.dtype().is_float();
        let mut all = outputs.iter().enumerate().filter(|(_, o)| is_one(o));
        let (output, (_, tensor)) = all.next()?;
        if all.next().is_some() {
            return None;
        }
        // Coefficients of the masks of a segmenting model.
        let masks = outputs.iter().find_map(|(_, t)| match t.shape() {
            [1, m, _, _] => Some(*m),
            _ => None,
        });
        let masks = masks.unwrap_or(0);
        let [_, a, b] = *tensor.shape() else { return None };
        let cells = cells(size);
        if b == 6 && a <= MAX_FINAL {
            return Some(Self::Final { output });
        }
        if a < b {
            let classes = a.checked_sub(4 + masks).filter(|n| *n > 0)?;
            return Some(Self::Columns { output, classes });
        }
        // Three boxes for each cell.
        let classes = b.checked_sub(5 + masks).filter(|n| *n > 0)?;
        cells
            .iter()
            .any(|n| 3 * n == a)
            .then_some(Self::Rows { output, classes })
    }

    /// The form for a known number of classes, beside which a box may have more numbers, such as
    /// key points.
    fn with_classes(self, outputs: &[Named], known: Option<usize>) -> Result<Self> {
        let Some(known) = known else { return Ok(self) };
        match self {
            Self::Columns { output, classes } if known < classes => Ok(Self::Columns {
                output,
                classes: known,
            }),
            Self::Rows { output, classes } if known < classes => Ok(Self::Rows {
                output,
                classes: known,
            }),
            Self::Columns { classes, .. } | Self::Rows { classes, .. } if known > classes => {
                let why = format!(", which has room for {classes} classes, but the model names {known}");
                Err(unknown(outputs, &why))
            }
            form => Ok(form),
        }
    }

    /// Number of classes, where the form tells it.
    fn classes(self) -> Option<usize> {
        match self {
            Self::Columns { classes, .. } | Self::Rows { classes, .. } | Self::Pair { classes, .. } => {
                Some(classes)
            }
            Self::Final { .. } | Self::Triple { .. } => None,
        }
    }

    /// The boxes with at least this score.
    fn candidates(self, outputs: &[Named], size: (u32, u32), least: f32) -> Result<Vec<Candidate>> {
        let values = |i: usize| -> Result<Values<'_>> {
            let (name, tensor) = outputs.get(i).ok_or_else(|| unknown(outputs, ""))?;
            Values::of(name, tensor)
        };
        match self {
            Self::Columns { output, classes } => {
                let v = values(output)?;
                let n = v.shape.last().copied().unwrap_or(0);
                let boxes = |i: usize| [0, 1, 2, 3].map(|k| v.at(k * n + i));
                best(
                    n,
                    classes,
                    least,
                    |i, c| v.score((4 + c) * n + i),
                    |i| centered(boxes(i)),
                )
            }
            Self::Rows { output, classes } => {
                let v = values(output)?;
                let width = v.shape.last().copied().unwrap_or(1).max(1);
                let boxes = |i: usize| [0, 1, 2, 3].map(|k| v.at(i * width + k));
                let score = |i: usize, c: usize| Ok(v.score(i * width + 4)? * v.score(i * width + 5 + c)?);
                best(v.data.len() / width, classes, least, score, |i| {
                    centered(boxes(i))
                })
            }
            Self::Final { output } => {
                let v = values(output)?;
                let mut found = Vec::new();
                for i in 0..v.data.len() / 6 {
                    let score = v.score(6 * i + 4)?;
                    if score >= least {
                        let edges = [0, 1, 2, 3].map(|k| v.at(6 * i + k));
                        found.push(Candidate {
                            class: v.class(6 * i + 5)?,
                            score,
                            edges,
                        });
                    }
                }
                Ok(found)
            }
            Self::Pair {
                boxes,
                scores,
                classes,
            } => paired(&values(boxes)?, &values(scores)?, classes, size, least),
            Self::Triple {
                boxes,
                classes,
                scores,
                top_first,
            } => {
                let order = if top_first { [1, 0, 3, 2] } else { [0, 1, 2, 3] };
                listed(
                    &values(boxes)?,
                    &values(classes)?,
                    &values(scores)?,
                    order,
                    size,
                    least,
                )
            }
        }
    }
}

/// The boxes beside a row of scores for each.
fn paired(
    b: &Values<'_>,
    s: &Values<'_>,
    classes: usize,
    size: (u32, u32),
    least: f32,
) -> Result<Vec<Candidate>> {
    let n = b.data.len() / 4;
    // With softmax over the classes, the first one is the background.
    let sums_to_one = |row: &[f32]| (row.iter().sum::<f32>() - 1.0).abs() < 1e-2;
    let first = usize::from(classes > 1 && n > 0 && s.data.chunks_exact(classes).all(sums_to_one));
    let edges = |i: usize| [0, 1, 2, 3].map(|k| b.at(4 * i + k));
    let score = |i: usize, c: usize| s.score(i * classes + first + c);
    let mut found = best(n, classes - first, least, score, edges)?;
    found.iter_mut().for_each(|c| c.class += first);
    b.scaled(found, size)
}

/// The boxes with a class and a score each; `order` is that of left, top, right and bottom.
fn listed(
    b: &Values<'_>,
    c: &Values<'_>,
    s: &Values<'_>,
    order: [usize; 4],
    size: (u32, u32),
    least: f32,
) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for i in 0..s.data.len().min(b.data.len() / 4) {
        let score = s.score(i)?;
        if score >= least {
            found.push(Candidate {
                class: c.class(i)?,
                score,
                edges: order.map(|k| b.at(4 * i + k)),
            });
        }
    }
    b.scaled(found, size)
}

/// Elements of an output.
struct Values<'a> {
    name: &'a str,
    shape: &'a [usize],
    data: std::borrow::Cow<'a, [f32]>,
}

impl<'a> Values<'a> {
    fn of(name: &'a str, tensor: &'a HostTensor) -> Result<Self> {
        let failed = |e| Error::caused(Stage::Run, format!("output \"{name}\""), e);
        let data = match tensor.dtype().is_float() {
            true => tensor.to_f32().map_err(failed)?,
            #[expect(clippy::cast_precision_loss, reason = "numbers of classes")]
            false => {
                let all = tensor.to_i64().map_err(failed)?;
                all.into_iter().map(|v| v as f32).collect()
            }
        };
        Ok(Self {
            name,
            shape: tensor.shape(),
            data,
        })
    }

    fn at(&self, i: usize) -> f32 {
        self.data.get(i).copied().unwrap_or(f32::NAN)
    }

    fn refused(&self, what: String) -> Error {
        let what = format!("output \"{}\" is not that of a detector: {what}", self.name);
        Error::other(Stage::Run, what)
    }

    /// A probability.
    fn score(&self, i: usize) -> Result<f32> {
        let v = self.at(i);
        if (-0.01..=1.01).contains(&v) {
            return Ok(v);
        }
        Err(self.refused(format!("a score of {v}; expected probabilities from 0 to 1")))
    }

    fn class(&self, i: usize) -> Result<usize> {
        let v = self.at(i);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "checked"
        )]
        if v >= 0.0 && v < MAX_CLASSES as f32 && v.fract() == 0.0 {
            return Ok(v as usize);
        }
        Err(self.refused(format!("the class {v}; expected a whole number")))
    }

    /// The boxes `found` of this output in pixels of the input. If their coordinates are parts of
    /// its sides, which is seen by their size, they are multiplied by it.
    #[expect(clippy::cast_precision_loss, reason = "sides of pictures")]
    fn scaled(&self, mut found: Vec<Candidate>, (width, height): (u32, u32)) -> Result<Vec<Candidate>> {
        found.retain(|c| c.edges.iter().all(|e| e.is_finite()));
        let most = found.iter().flat_map(|c| c.edges);
        let most = most.map(f32::abs).fold(0.0, f32::max);
        if most > MAX_PART && most < MIN_PIXELS {
            return Err(self.refused(format!(
                "coordinates up to {most}; expected parts of the input up to {MAX_PART}, or pixels"
            )));
        }
        if most <= MAX_PART {
            let sides = [width as f32, height as f32, width as f32, height as f32];
            let edges = found.iter_mut().flat_map(|c| c.edges.iter_mut().zip(sides));
            edges.for_each(|(e, side)| *e *= side);
        }
        Ok(found)
    }
}

fn centered([x, y, w, h]: [f32; 4]) -> [f32; 4] {
    [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
}

/// The boxes whose largest score is at least `least`, with its class.
fn best(
    count: usize,
    classes: usize,
    least: f32,
    score: impl Fn(usize, usize) -> Result<f32>,
    edges: impl Fn(usize) -> [f32; 4],
) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for i in 0..count {
        let mut most = (f32::NEG_INFINITY, 0);
        for class in 0..classes {
            let score = score(i, class)?;
            if score > most.0 {
                most = (score, class);
            }
        }
        if most.0 >= least {
            found.push(Candidate {
                class: most.1,
                score: most.0,
                edges: edges(i),
            });
        }
    }
    Ok(found)
}

/// Intersection over union of two boxes.
fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area = |e: &[f32; 4]| (e[2] - e[0]).max(0.0) * (e[3] - e[1]).max(0.0);
    let shared = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    shared / (area(a) + area(b) - shared).max(1e-6)
}

/// The most likely boxes of those that overlap, for each class, the most likely first.
fn suppressed(mut all: Vec<Candidate>) -> Vec<Candidate> {
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all.truncate(MAX_CANDIDATES);
    let mut kept: Vec<Candidate> = Vec::new();
    for one in all {
        let hides = |k: &Candidate| k.class == one.class && overlap(&k.edges, &one.edges) > MAX_OVERLAP;
        if kept.len() < MAX_OBJECTS && !kept.iter().any(hides) {
            kept.push(one);
        }
    }
    kept
}

/// The objects of a picture, the most likely first, with a score of at least `least`, and the
/// number of classes if the outputs tell it. `outputs` are those of a batch of one; `classes` is
/// the number of classes, if it is known.
///
/// An error of kind [`ErrorKind::Unsupported`] for outputs of another form than those above; of
/// kind [`ErrorKind::Other`] for scores that are not probabilities, classes that are not whole
/// numbers, and coordinates that are neither parts of the input nor pixels.
pub fn objects(
    outputs: &[Named],
    picture: &Prepared,
    classes: Option<usize>,
    least: f32,
) -> Result<(Vec<Found>, Option<usize>)> {
    let form = Form::of(outputs, picture.size, classes)?;
    let mut all = form.candidates(outputs, picture.size, least)?;
    all.retain(|c| c.edges.iter().all(|e| e.is_finite()));
    #[expect(clippy::cast_precision_loss, reason = "sides of pictures")]
    let (width, height) = (picture.source.0 as f32, picture.source.1 as f32);
    let found = suppressed(all).into_iter().map(|c| {
        let [left, top] = picture.place([c.edges[0], c.edges[1]]);
        let [right, bottom] = picture.place([c.edges[2], c.edges[3]]);
        Found {
            class: c.class,
            label: None,
            score: c.score,
            edges: [
                left.clamp(0.0, width),
                top.clamp(0.0, height),
                right.clamp(0.0, width),
                bottom.clamp(0.0, height),
            ],
        }
    });
    Ok((found.collect(), form.classes()))
}

#[cfg(test)]
mod tests {
    use super::super::picture::Fit;
    use super::*;
    use crate::testing::assert_error;

    /// A picture of 200 x 100 pixels, stretched to an input of 64 x 32.
    fn picture() -> Prepared {
        Prepared {
            tensor: HostTensor::from_f32(&[0], &[]).unwrap(),
            source: (200, 100),
            size: (64, 32),
            fit: Fit::Stretch,
        }
    }

    fn floats(name: &str, shape: &[usize], data: &[f32]) -> Named {
        (name.to_owned(), HostTensor::from_f32(shape, data).unwrap())
    }

    /// Class, score and box of each object.
    fn found(outputs: &[Named]) -> Vec<(usize, f32, [f32; 4])> {
        let (found, _) = objects(outputs, &picture(), None, 0.25).unwrap();
        found.iter().map(|f| (f.class, f.score, f.edges)).collect()
    }

    /// The box of a center (16, 16) and a size of 16 x 8.
    const BOX: [f32; 4] = [25.0, 37.5, 75.0, 62.5];

    #[test]
    fn columns_of_newer_yolo_models() {
        // Twelve boxes of 4 + 2 numbers: an object, the same again less likely, another class at
        // its place, one beyond the edge.
        let mut data = vec![0.0; 6 * 12];
        let mut set = |i: usize, v: [f32; 6]| (0..6).for_each(|k| data[k * 12 + i] = v[k]);
        set(0, [16.0, 16.0, 16.0, 8.0, 0.9, 0.1]);
        set(3, [16.5, 16.0, 16.0, 8.0, 0.8, 0.1]);
        set(5, [16.0, 16.0, 16.0, 8.0, 0.1, 0.7]);
        set(7, [0.0, 0.0, 16.0, 16.0, 0.0, 0.3]);
        set(8, [40.0, 16.0, 4.0, 4.0, 0.2, 0.2]);
        let outputs = [floats("output0", &[1, 6, 12], &data)];
        assert_eq!(
            found(&outputs),
            [(0, 0.9, BOX), (1, 0.7, BOX), (1, 0.3, [0.0, 0.0, 25.0, 25.0])]
        );
        let (_, classes) = objects(&outputs, &picture(), None, 0.25).unwrap();
        assert_eq!(classes, Some(2));
        // One class, and a number that is none.
        let (one, classes) = objects(&outputs, &picture(), Some(1), 0.25).unwrap();
        assert_eq!((one.len(), classes), (1, Some(1)));
        let e = objects(&outputs, &picture(), Some(3), 0.25).unwrap_err();
        assert_error(&e, ErrorKind::Unsupported, &["output0", "2", "3"]);
        // With the masks of a segmenting model, only one class is left.
        let masks = floats("masks", &[1, 1, 2, 2], &[0.0; 4]);
        let (_, classes) = objects(&[outputs[0].clone(), masks], &picture(), None, 0.25).unwrap();
        assert_eq!(classes, Some(1));
    }

    #[test]
    fn rows_of_older_yolo_models() {
        // 8 x 4 + 4 x 2 + 2 x 1 cells with three boxes each.
        let n = 3 * 42;
        let mut data = vec![0.0; 7 * n];
        data[7 * 9..7 * 10].copy_from_slice(&[16.0, 16.0, 16.0, 8.0, 0.5, 0.1, 0.8]);
        data[0..7].copy_from_slice(&[16.0, 16.0, 16.0, 8.0, 0.1, 1.0, 1.0]);
        assert_eq!(found(&[floats("out", &[1, n, 7], &data)]), [(1, 0.4, BOX)]);
    }

    #[test]
    fn boxes_without_duplicates() {
        let data = [8.0, 12.0, 24.0, 20.0, 0.9, 3.0, 8.0, 12.0, 24.0, 20.0, 0.1, 1.0];
        assert_eq!(found(&[floats("out", &[1, 2, 6], &data)]), [(3, 0.9, BOX)]);
    }

    #[test]
    fn boxes_beside_scores() {
        let boxes = [0.125, 0.375, 0.375, 0.625, 0.0, 0.0, 0.1, 0.1];
        let boxes = floats("boxes", &[1, 2, 4], &boxes);
        // Softmax, with the background first; then independent scores, in the other order.
        let scores = floats("scores", &[1, 2, 3], &[0.1, 0.2, 0.7, 0.9, 0.05, 0.05]);
        assert_eq!(found(&[boxes.clone(), scores]), [(2, 0.7, BOX)]);
        let scores = floats("scores", &[1, 2, 3], &[0.9, 0.2, 0.7, 0.1, 0.05, 0.05]);
        assert_eq!(found(&[scores, boxes]), [(0, 0.9, BOX)]);
    }

    #[test]
    fn detections_with_suppression() {
        let pixels = floats("boxes", &[2, 4], &[8.0, 12.0, 24.0, 20.0, 0.0, 0.0, 9.0, 9.0]);
        let labels = ("labels".to_owned(), HostTensor::from_i64(&[2], &[17, 1]).unwrap());
        let scores = floats("scores", &[2], &[0.9, 0.2]);
        assert_eq!(found(&[pixels, labels, scores]), [(17, 0.9, BOX)]);
        // Of TensorFlow: parts of the input, top before left.
        let outputs = [
            floats("detection_boxes:0", &[1, 1, 4], &[0.375, 0.125, 0.625, 0.375]),
            floats("detection_classes:0", &[1, 1], &[18.0]),
            floats("detection_scores:0", &[1, 1], &[0.5]),
            floats("num_detections:0", &[1], &[1.0]),
        ];
        assert_eq!(found(&outputs), [(18, 0.5, BOX)]);
    }

    #[test]
    fn other_outputs_are_named() {
        for outputs in [
            vec![],
            vec![floats("y", &[1, 10], &[0.0; 10])],
            vec![floats("y", &[1, 4, 9], &[0.0; 36])],
            vec![floats("y", &[1, 50, 7], &[0.0; 350])],
            vec![floats("y", &[2, 6, 12], &[0.0; 144])],
            vec![
                floats("y", &[1, 6, 12], &[0.0; 72]),
                floats("z", &[1, 6, 12], &[0.0; 72]),
            ],
        ] {
            let e = objects(&outputs, &picture(), None, 0.25).unwrap_err();
            let names: Vec<&str> = outputs.iter().take(1).map(|(n, _)| n.as_str()).collect();
            assert_error(&e, ErrorKind::Unsupported, &names);
        }
        // The form fits, but not the values; the first are logits.
        for (shape, data) in [
            (&[1, 6, 12], &[3.0; 72][..]),
            (&[1, 1, 6], &[0.0, 0.0, 1.0, 1.0, 0.9, 0.5]),
            (&[1, 1, 6], &[0.0, 0.0, 1.0, 1.0, f32::NAN, 1.0]),
        ] {
            let e = objects(&[floats("y", shape, data)], &picture(), None, 0.25).unwrap_err();
            assert_error(&e, ErrorKind::Other, &["y"]);
        }
    }

    #[test]
    fn units_are_those_of_the_likely_boxes() {
        // The other boxes are not examined; NaN is no box.
        let of = |likely: [f32; 4], other: f32| {
            let boxes = [likely, [other; 4], [f32::NAN; 4]].concat();
            let outputs = [
                floats("boxes", &[3, 4], &boxes),
                ("labels".to_owned(), HostTensor::from_i64(&[3], &[1; 3]).unwrap()),
                floats("scores", &[3], &[0.9, 0.1, 0.9]),
            ];
            let found = objects(&outputs, &picture(), None, 0.25)?.0;
            Ok(found.iter().map(|f| f.edges).collect::<Vec<_>>())
        };
        assert_eq!(of([0.125, 0.375, 0.375, 0.625], 900.0).unwrap(), [BOX]);
        assert_eq!(of([8.0, 12.0, 24.0, 20.0], 0.5).unwrap(), [BOX]);
        let e: Error = of([0.0, 0.0, 3.0, 3.0], 0.5).unwrap_err();
        assert_error(&e, ErrorKind::Other, &["boxes", "3"]);
    }

    #[test]
    fn objects_are_limited() {
        // Each has another class, so none hides another.
        let row = |i: u16| [0.0, 0.0, 1.0, 1.0, 0.5, f32::from(i)];
        let data: Vec<f32> = (0..400).flat_map(row).collect();
        let outputs = [floats("y", &[1, 400, 6], &data)];
        assert_eq!(
            objects(&outputs, &picture(), None, 0.25).unwrap().0.len(),
            MAX_OBJECTS
        );
    }
}
