//! Connected regions of a probability map, and the smallest rectangles around them.

use image::RgbImage;

/// A rotated rectangle.
#[derive(Clone, Copy, Debug)]
pub struct Rect {
    /// Center.
    pub centre: [f32; 2],
    /// Unit vector along the width, pointing right.
    pub along: [f32; 2],
    /// Width and height.
    pub size: [f32; 2],
}

impl Rect {
    /// The point at these shares of width and height, from 0 to 1.
    pub fn at(&self, x: f32, y: f32) -> [f32; 2] {
        let [ux, uy] = self.along;
        let (dx, dy) = ((x - 0.5) * self.size[0], (y - 0.5) * self.size[1]);
        [
            self.centre[0] + dx * ux - dy * uy,
            self.centre[1] + dx * uy + dy * ux,
        ]
    }

    /// The corners: upper left, upper right, lower right, lower left.
    pub fn corners(&self) -> [[f32; 2]; 4] {
        [
            self.at(0.0, 0.0),
            self.at(1.0, 0.0),
            self.at(1.0, 1.0),
            self.at(0.0, 1.0),
        ]
    }

    /// The rectangle with each edge moved outward.
    pub fn grown(mut self, by: f32) -> Self {
        self.size = self.size.map(|s| s + 2.0 * by);
        self
    }

    /// The rectangle scaled per axis; its angle is kept.
    pub fn scaled(self, factor: [f32; 2]) -> Self {
        let corners = self.corners().map(|[x, y]| [x * factor[0], y * factor[1]]);
        let side = |a: [f32; 2], b: [f32; 2]| [b[0] - a[0], b[1] - a[1]];
        let (top, left) = (side(corners[0], corners[1]), side(corners[0], corners[3]));
        let width = top[0].hypot(top[1]).max(1e-6);
        Self {
            centre: [self.centre[0] * factor[0], self.centre[1] * factor[1]],
            along: top.map(|v| v / width),
            size: [width, left[0].hypot(left[1])],
        }
    }

    /// The image content inside, rotated upright.
    pub fn cut(&self, picture: &RgbImage) -> RgbImage {
        let [w, h] = self.size.map(|s| s.round().clamp(1.0, 8192.0) as u32);
        RgbImage::from_fn(w, h, |x, y| {
            let point = self.at((x as f32 + 0.5) / w as f32, (y as f32 + 0.5) / h as f32);
            sample(picture, point)
        })
    }
}

/// Bilinear sample; outside the image, the nearest edge pixel.
fn sample(picture: &RgbImage, [x, y]: [f32; 2]) -> image::Rgb<u8> {
    let (w, h) = (picture.width() as f32, picture.height() as f32);
    let (x, y) = ((x - 0.5).clamp(0.0, w - 1.0), (y - 0.5).clamp(0.0, h - 1.0));
    let (left, top) = (x.floor(), y.floor());
    let pixel = |x: f32, y: f32| picture.get_pixel(x.min(w - 1.0) as u32, y.min(h - 1.0) as u32).0;
    let corners = [
        pixel(left, top),
        pixel(left + 1.0, top),
        pixel(left, top + 1.0),
        pixel(left + 1.0, top + 1.0),
    ];
    let (fx, fy) = (x - left, y - top);
    let parts = [(1.0 - fx) * (1.0 - fy), fx * (1.0 - fy), (1.0 - fx) * fy, fx * fy];
    let mut out = [0; 3];
    for (c, o) in out.iter_mut().enumerate() {
        let sum: f32 = corners.iter().zip(parts).map(|(p, k)| f32::from(p[c]) * k).sum();
        *o = sum.round() as u8;
    }
    image::Rgb(out)
}

/// A connected region of a map above a threshold.
#[derive(Debug)]
pub struct Region {
    /// Its outermost points in each row.
    points: Vec<[f32; 2]>,
    /// Mean of the map inside it.
    pub mean: f32,
}

/// All 8-connected regions of a map of this width.
pub fn regions(map: &[f32], width: usize, threshold: f32) -> Vec<Region> {
    let width = width.max(1);
    let height = map.len() / width;
    let mut seen: Vec<bool> = map.iter().map(|p| *p <= threshold).collect();
    let mut all = Vec::new();
    for start in 0..width * height {
        if seen[start] {
            continue;
        }
        seen[start] = true;
        let (mut work, mut sum, mut count) = (vec![start], 0.0, 0.0);
        // First and last pixel per row.
        let mut rows: std::collections::BTreeMap<usize, (usize, usize)> = Default::default();
        while let Some(i) = work.pop() {
            let (x, y) = (i % width, i / width);
            let row = rows.entry(y).or_insert((x, x));
            *row = (row.0.min(x), row.1.max(x));
            (sum, count) = (sum + map[i], count + 1.0);
            for ny in y.saturating_sub(1)..=(y + 1).min(height - 1) {
                for nx in x.saturating_sub(1)..=(x + 1).min(width - 1) {
                    let n = ny * width + nx;
                    if !seen[n] {
                        seen[n] = true;
                        work.push(n);
                    }
                }
            }
        }
        // All corners of the outermost pixels.
        let corners = |(y, (first, last)): (usize, (usize, usize))| {
            let (y, x, z) = (y as f32, first as f32, last as f32 + 1.0);
            [[x, y], [z, y], [x, y + 1.0], [z, y + 1.0]]
        };
        all.push(Region {
            points: rows.into_iter().flat_map(corners).collect(),
            mean: sum / count,
        });
    }
    all
}

/// The convex hull, by Andrew's monotone chain algorithm.
fn hull(points: &[[f32; 2]]) -> Vec<[f32; 2]> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    let turns = |a: [f32; 2], b: [f32; 2], c: [f32; 2]| {
        (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) > 0.0
    };
    let chain = |points: &mut dyn Iterator<Item = [f32; 2]>| {
        let mut chain: Vec<[f32; 2]> = Vec::new();
        for p in points {
            while let [.., a, b] = chain.as_slice() {
                if turns(*a, *b, p) {
                    break;
                }
                chain.pop();
            }
            chain.push(p);
        }
        chain.pop();
        chain
    };
    let mut out = chain(&mut sorted.iter().copied());
    out.extend(chain(&mut sorted.iter().rev().copied()));
    out
}

impl Region {
    /// The smallest rectangle around it; its width is the more horizontal direction.
    pub fn rect(&self) -> Option<Rect> {
        let hull = hull(&self.points);
        let candidate = |i: usize| {
            let (a, b) = (hull[i], hull[(i + 1) % hull.len()]);
            let [dx, dy] = [b[0] - a[0], b[1] - a[1]];
            let length = dx.hypot(dy);
            // One of the edge direction, its normal and their opposites points right.
            let [ux, uy] = if dx.abs() >= dy.abs() {
                [dx / length * dx.signum(), dy / length * dx.signum()]
            } else {
                [dy / length * dy.signum(), -dx / length * dy.signum()]
            };
            let mut range = [f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY, f32::NEG_INFINITY];
            for [x, y] in &hull {
                let (p, q) = (x * ux + y * uy, y * ux - x * uy);
                range = [range[0].min(p), range[1].max(p), range[2].min(q), range[3].max(q)];
            }
            let (p, q) = ((range[0] + range[1]) / 2.0, (range[2] + range[3]) / 2.0);
            Rect {
                centre: [p * ux - q * uy, p * uy + q * ux],
                along: [ux, uy],
                size: [range[1] - range[0], range[3] - range[2]],
            }
        };
        let area = |r: &Rect| r.size[0] * r.size[1];
        let all = (0..hull.len()).map(candidate);
        all.min_by(|a, b| area(a).total_cmp(&area(b)))
    }
}
