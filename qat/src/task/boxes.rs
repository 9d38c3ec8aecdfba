//! Boxes: anchors, matching, non-maximum suppression, and average precision.

/// A box, in shares of the height and width of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Area {
    pub left: f32,
    pub top: f32,
    pub right: f32,
    pub bottom: f32,
}

/// An object on a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    pub class: usize,
    pub area: Area,
}

/// An object that a network found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    pub object: Object,
    /// Its probability.
    pub score: f32,
}

/// Pixels between the cells of each feature map, and the sizes of its anchors: side of the smaller
/// and of the larger square.
const MAPS: [(usize, [f32; 2]); 2] = [(16, [0.24, 0.34]), (32, [0.45, 0.58])];
/// Height to width of further anchors with the area of the smaller square.
const RATIOS: [f32; 4] = [0.5, 2.0, 1.0 / 3.0, 3.0];
/// Anchors of a cell.
pub const ANCHORS: usize = RATIOS.len() + 2;
/// Numbers of a box.
pub const SIDES: usize = 4;
/// What one unit of an output stands for: in positions, in sizes of the anchor; in sizes, as a
/// logarithm (Liu et al., 2016).
const UNITS: [f32; 2] = [0.1, 0.2];
/// Anchors match objects with at least this IoU.
const MATCHED: f32 = 0.5;
/// Of two detections of a class with a higher IoU, the less probable one is dropped.
const SAME: f32 = 0.45;
/// Less probable detections are dropped; of others, this number is kept for each picture.
const LEAST_SCORE: f32 = 0.01;
const MOST_DETECTIONS: usize = 100;

impl Area {
    /// An area with this center, height and width.
    fn around([y, x]: [f32; 2], [height, width]: [f32; 2]) -> Self {
        Self {
            left: x - width / 2.0,
            top: y - height / 2.0,
            right: x + width / 2.0,
            bottom: y + height / 2.0,
        }
    }

    fn size(self) -> [f32; 2] {
        [self.bottom - self.top, self.right - self.left]
    }

    fn center(self) -> [f32; 2] {
        [(self.top + self.bottom) / 2.0, (self.left + self.right) / 2.0]
    }

    fn surface(self) -> f32 {
        let [height, width] = self.size();
        height.max(0.0) * width.max(0.0)
    }

    fn common(self, other: Self) -> f32 {
        let both = Self {
            left: self.left.max(other.left),
            top: self.top.max(other.top),
            right: self.right.min(other.right),
            bottom: self.bottom.min(other.bottom),
        };
        both.surface()
    }

    /// Intersection over union.
    pub fn iou(self, other: Self) -> f32 {
        let common = self.common(other);
        let union = self.surface() + other.surface() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }

    /// The share of the smaller one that both have in common.
    pub fn overlap(self, other: Self) -> f32 {
        let smaller = self.surface().min(other.surface());
        if smaller > 0.0 {
            self.common(other) / smaller
        } else {
            0.0
        }
    }

    /// The outputs of a network for this area at an anchor.
    pub fn encoded(self, anchor: Self) -> [f32; SIDES] {
        let ([y, x], [h, w]) = (self.center(), self.size());
        let ([anchor_y, anchor_x], [anchor_h, anchor_w]) = (anchor.center(), anchor.size());
        let [place, size] = UNITS;
        [
            (x - anchor_x) / anchor_w / place,
            (y - anchor_y) / anchor_h / place,
            (w / anchor_w).ln() / size,
            (h / anchor_h).ln() / size,
        ]
    }

    /// The inverse of [`encoded`](Self::encoded).
    fn decoded([x, y, w, h]: [f32; SIDES], anchor: Self) -> Self {
        let ([anchor_y, anchor_x], [anchor_h, anchor_w]) = (anchor.center(), anchor.size());
        let [place, size] = UNITS;
        let center = [anchor_y + y * place * anchor_h, anchor_x + x * place * anchor_w];
        Self::around(center, [(h * size).exp() * anchor_h, (w * size).exp() * anchor_w])
    }
}

/// Height and width of each feature map of a network for pictures of this size.
pub fn maps([_, height, width]: [usize; 3]) -> [[usize; 2]; MAPS.len()] {
    MAPS.map(|(stride, _)| [height.div_ceil(stride), width.div_ceil(stride)])
}

/// The anchors for pictures of this size: by map, row, column and shape.
pub fn anchors(picture: [usize; 3]) -> Vec<Area> {
    let mut all = Vec::new();
    for ((_, [small, large]), [rows, columns]) in MAPS.iter().zip(maps(picture)) {
        let ratios = RATIOS.map(|r| [small * r.sqrt(), small / r.sqrt()]);
        let shapes = [[*small; 2], [*large; 2]].into_iter().chain(ratios);
        for cell in 0..rows * columns {
            #[expect(clippy::cast_precision_loss, reason = "numbers of cells")]
            let center = [
                ((cell / columns) as f32 + 0.5) / rows as f32,
                ((cell % columns) as f32 + 0.5) / columns as f32,
            ];
            all.extend(shapes.clone().map(|shape| Area::around(center, shape)));
        }
    }
    all
}

/// For each anchor, the object that it has to find: that with the largest IoU, if that is at least
/// 0.5. The best free anchor of each object has to find it in any case.
pub fn matched(anchors: &[Area], objects: &[Object]) -> Vec<Option<Object>> {
    let best = |anchor: &Area| {
        let pairs = objects.iter().map(|o| (anchor.iou(o.area), o));
        let best = pairs.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= MATCHED).then_some(*best.1)
    };
    let mut all: Vec<Option<Object>> = anchors.iter().map(best).collect();
    let mut taken: Vec<usize> = Vec::new();
    for object in objects {
        let free = anchors.iter().enumerate().filter(|(i, _)| !taken.contains(i));
        let best = free.max_by(|a, b| a.1.iou(object.area).total_cmp(&b.1.iou(object.area)));
        if let Some((i, _)) = best {
            taken.push(i);
            all[i] = Some(*object);
        }
    }
    all
}

/// The detections in the output of a network for a picture: for each anchor, a box, a score for each
/// class, and one for the background.
pub fn detections(output: &[f32], anchors: &[Area]) -> Vec<Detection> {
    let width = output.len() / anchors.len().max(1);
    let mut all = Vec::new();
    for (row, anchor) in output.chunks_exact(width.max(1)).zip(anchors) {
        let Some((place, scores)) = row.split_first_chunk::<SIDES>() else {
            continue;
        };
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = scores.iter().map(|v| (v - most).exp()).sum();
        let area = Area::decoded(*place, *anchor);
        let classes = scores.len().saturating_sub(1);
        for (class, v) in scores.iter().take(classes).enumerate() {
            let score = (v - most).exp() / sum;
            if score >= LEAST_SCORE {
                let object = Object { class, area };
                all.push(Detection { object, score });
            }
        }
    }
    suppressed(all)
}

/// The most probable detections, without those that mean the same object as a more probable one.
pub fn suppressed(mut all: Vec<Detection>) -> Vec<Detection> {
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut kept: Vec<Detection> = Vec::new();
    for d in all {
        let same =
            |k: &Detection| k.object.class == d.object.class && k.object.area.iou(d.object.area) > SAME;
        if kept.len() < MOST_DETECTIONS && !kept.iter().any(same) {
            kept.push(d);
        }
    }
    kept
}

/// The average precision at an IoU threshold as COCO defines it: the mean over recalls of 0, 0.01 to
/// 1 of the largest precision at that recall or a higher one. `found` are detections of one class
/// with the index of their picture, the most probable first; `objects` those of the class, by
/// picture.
pub fn average_precision(found: &[(usize, Area)], objects: &[Vec<Area>], threshold: f32) -> f64 {
    let mut free: Vec<Vec<bool>> = objects.iter().map(|o| vec![true; o.len()]).collect();
    let mut right = Vec::with_capacity(found.len());
    for (picture, area) in found {
        let (Some(objects), Some(free)) = (objects.get(*picture), free.get_mut(*picture)) else {
            continue;
        };
        let pairs = objects.iter().zip(free).filter(|(_, free)| **free);
        let pairs = pairs.map(|(o, free)| (o.iou(*area), free));
        let best = pairs.max_by(|a, b| a.0.total_cmp(&b.0));
        let hit = best.filter(|(iou, _)| *iou >= threshold);
        right.push(hit.is_some());
        if let Some((_, free)) = hit {
            *free = false;
        }
    }
    interpolated(&right, objects.iter().map(Vec::len).sum())
}

/// The mean over 101 recalls of the interpolated precision of ranked detections, for this number of
/// objects.
#[expect(clippy::cast_precision_loss, reason = "numbers of objects")]
fn interpolated(right: &[bool], objects: usize) -> f64 {
    // Recall and precision at each right detection.
    let ranks = right.iter().enumerate().filter(|(_, hit)| **hit);
    let mut points: Vec<(usize, f64)> = ranks
        .enumerate()
        .map(|(n, (rank, _))| (n + 1, (n + 1) as f64 / (rank + 1) as f64))
        .collect();
    let mut best = 0f64;
    for (_, precision) in points.iter_mut().rev() {
        best = best.max(*precision);
        *precision = best;
    }
    // At least a percent * objects / 100 objects are found.
    let at = |percent: usize| points.iter().find(|(n, _)| n * 100 >= percent * objects);
    (0..=100).filter_map(at).map(|p| p.1).sum::<f64>() / 101.0
}

/// Mean average precision over classes with objects: over IoU thresholds of 0.5, 0.55 to 0.95, and at
/// 0.5. Both are lists by picture.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
pub fn mean_average_precision(found: &[Vec<Detection>], objects: &[Vec<Object>], classes: usize) -> [f64; 2] {
    let (mut sum, mut sum50, mut count) = (0.0, 0.0, 0usize);
    for class in 0..classes {
        let of = |o: &Object| (o.class == class).then_some(o.area);
        let wanted = objects.iter().map(|o| o.iter().filter_map(of).collect());
        let wanted: Vec<Vec<Area>> = wanted.collect();
        if wanted.iter().all(Vec::is_empty) {
            continue;
        }
        let pictures = found.iter().enumerate();
        let mut ranked: Vec<(f32, (usize, Area))> = pictures
            .flat_map(|(i, all)| {
                all.iter()
                    .filter_map(move |d| Some((d.score, (i, of(&d.object)?))))
            })
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let ranked: Vec<(usize, Area)> = ranked.into_iter().map(|r| r.1).collect();
        let at = |step: u8| average_precision(&ranked, &wanted, 0.5 + 0.05 * f32::from(step));
        let all: Vec<f64> = (0..10).map(at).collect();
        sum += all.iter().sum::<f64>() / all.len() as f64;
        sum50 += all.first().copied().unwrap_or(f64::NAN);
        count += 1;
    }
    [sum, sum50].map(|s| s / count.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(left: f32, top: f32, right: f32, bottom: f32) -> Area {
        Area {
            left,
            top,
            right,
            bottom,
        }
    }

    fn object(class: usize, area: Area) -> Object {
        Object { class, area }
    }

    #[test]
    fn iou_and_overlap_equal_numbers_by_hand() {
        let (a, b) = (area(0.0, 0.0, 0.4, 0.4), area(0.2, 0.0, 0.4, 0.8));
        assert!((a.iou(b) - 0.08 / 0.24).abs() < 1e-6);
        assert!((a.overlap(b) - 0.5).abs() < 1e-6);
        assert_eq!(a.iou(area(0.5, 0.5, 0.9, 0.9)), 0.0);
    }

    #[test]
    fn boxes_are_encoded_and_decoded() {
        let anchor = area(0.2, 0.2, 0.6, 0.4);
        let code = area(0.24, 0.2, 0.64, 0.6).encoded(anchor);
        // A tenth of the width and half of the height further, and twice as high.
        for (found, expected) in code.iter().zip([1.0, 5.0, 0.0, 2f32.ln() / 0.2]) {
            assert!((found - expected).abs() < 1e-5, "{code:?}");
        }
        assert!(Area::decoded(code, anchor).iou(area(0.24, 0.2, 0.64, 0.6)) > 0.9999);
    }

    #[test]
    fn anchors_match_near_objects_and_each_object_one_anchor() {
        let all = anchors([1, 96, 96]);
        assert_eq!(all.len(), (36 + 9) * ANCHORS);
        let anchors = [
            area(0.0, 0.0, 0.5, 0.5),
            area(0.1, 0.0, 0.6, 0.5),
            area(0.6, 0.6, 1.0, 1.0),
        ];
        let objects = [
            object(3, area(0.0, 0.0, 0.5, 0.5)),
            object(4, area(0.9, 0.9, 1.0, 1.0)),
        ];
        // The second anchor has an IoU of 2/3 with the first object, the third one of 1/16.
        let classes = matched(&anchors, &objects)
            .into_iter()
            .map(|o| o.map(|o| o.class));
        assert_eq!(classes.collect::<Vec<_>>(), [Some(3), Some(3), Some(4)]);
    }

    #[test]
    fn detections_of_the_same_object_are_suppressed() {
        let found = |class, left, score| Detection {
            object: object(class, area(left, 0.0, left + 0.4, 0.4)),
            score,
        };
        let all = vec![
            found(0, 0.1, 0.5),
            found(0, 0.0, 0.9),
            found(1, 0.1, 0.6),
            found(0, 0.3, 0.2),
        ];
        let scores: Vec<f32> = suppressed(all).iter().map(|d| d.score).collect();
        assert_eq!(
            scores,
            [0.9, 0.6, 0.2],
            "IoU 0.6 is dropped, IoU 1/7 and other classes are not"
        );
    }

    #[test]
    fn outputs_become_detections() {
        let anchors = [area(0.0, 0.0, 0.5, 0.5), area(0.5, 0.5, 1.0, 1.0)];
        let output = [
            0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, -9.0, -9.0, 9.0,
        ];
        let found = detections(&output, &anchors);
        let [first, ..] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((found.len(), first.object.class), (2, 0));
        assert_eq!(first.object.area, anchors[0]);
        assert!((first.score - 2f32.exp() / (2f32.exp() + 2.0)).abs() < 1e-6);
    }

    #[test]
    fn average_precision_equals_numbers_by_hand() {
        // Right, wrong, right, of 3 objects: precision 1 up to a recall of 1/3, 2/3 up to 2/3, then 0.
        let expected = (34.0 + 33.0 * 2.0 / 3.0) / 101.0;
        assert!((interpolated(&[true, false, true], 3) - expected).abs() < 1e-9);
        let (a, b) = (area(0.0, 0.0, 0.4, 0.4), area(0.5, 0.5, 0.9, 0.9));
        let objects = [vec![a, b], vec![a]];
        // The second detection of an object is wrong, and so is one of no object.
        let found = [(0, a), (0, a), (0, b)];
        assert!((average_precision(&found, &objects, 0.5) - expected).abs() < 1e-9);
        // An IoU of 31/49 is enough for the thresholds 0.5, 0.55 and 0.6 of 10.
        let near = area(0.09, 0.0, 0.49, 0.4);
        let found = [vec![Detection {
            object: object(1, near),
            score: 0.9,
        }]];
        let [map, at50] = mean_average_precision(&found, &[vec![object(1, a)]], 3);
        assert_eq!(at50, 1.0);
        assert!((map - 0.3).abs() < 1e-9, "{map}");
    }
}
