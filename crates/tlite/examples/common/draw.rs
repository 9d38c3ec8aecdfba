//! Draws lines and text on images.

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use image::{Rgb, RgbImage};

/// A color per number; consecutive colors are easy to distinguish.
pub fn colour(i: usize) -> Rgb<u8> {
    const ALL: [[u8; 3]; 8] = [
        [230, 25, 75],
        [0, 130, 200],
        [60, 160, 60],
        [245, 130, 48],
        [145, 30, 180],
        [0, 150, 150],
        [170, 110, 40],
        [200, 30, 140],
    ];
    Rgb(ALL[i % ALL.len()])
}

/// Blends a share from 0 to 1 of a color into a pixel. Pixels outside the image are ignored.
fn mix(picture: &mut RgbImage, x: i64, y: i64, colour: Rgb<u8>, part: f32) {
    let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else {
        return;
    };
    if let Some(pixel) = picture.get_pixel_mut_checked(x, y) {
        for (old, new) in pixel.0.iter_mut().zip(colour.0) {
            *old = (f32::from(*old) * (1.0 - part) + f32::from(new) * part).round() as u8;
        }
    }
}

/// A line of the given width with soft edges.
pub fn line(picture: &mut RgbImage, from: [f32; 2], to: [f32; 2], width: f32, colour: Rgb<u8>) {
    let [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    let length = (dx * dx + dy * dy).max(1e-6);
    let reach = width / 2.0 + 1.0;
    let bounds = |a: f32, b: f32| (a.min(b) - reach).floor() as i64..=(a.max(b) + reach).ceil() as i64;
    for y in bounds(from[1], to[1]) {
        for x in bounds(from[0], to[0]) {
            let [px, py] = [x as f32 - from[0], y as f32 - from[1]];
            let along = ((px * dx + py * dy) / length).clamp(0.0, 1.0);
            let distance = (px - along * dx).hypot(py - along * dy);
            mix(
                picture,
                x,
                y,
                colour,
                (width / 2.0 + 0.5 - distance).clamp(0.0, 1.0),
            );
        }
    }
}

/// The outline of a polygon.
pub fn polygon(picture: &mut RgbImage, corners: &[[f32; 2]], width: f32, colour: Rgb<u8>) {
    for (i, from) in corners.iter().enumerate() {
        line(picture, *from, corners[(i + 1) % corners.len()], width, colour);
    }
}

/// A filled rectangle.
pub fn fill(picture: &mut RgbImage, at: [f32; 2], size: [f32; 2], colour: Rgb<u8>) {
    for y in at[1].round() as i64..(at[1] + size[1]).round() as i64 {
        for x in at[0].round() as i64..(at[0] + size[0]).round() as i64 {
            mix(picture, x, y, colour, 1.0);
        }
    }
}

fn font() -> FontRef<'static> {
    FontRef::try_from_slice(epaint_default_fonts::UBUNTU_LIGHT).expect("the bundled font is valid")
}

/// Width in pixels of a text at this font height.
pub fn text_width(text: &str, height: f32) -> f32 {
    let font = font();
    let font = font.as_scaled(PxScale::from(height));
    text.chars().map(|c| font.h_advance(font.glyph_id(c))).sum()
}

/// Writes a text; `at` is its upper left corner.
pub fn text(picture: &mut RgbImage, text: &str, at: [f32; 2], height: f32, colour: Rgb<u8>) {
    let font = font();
    let scaled = font.as_scaled(PxScale::from(height));
    let (mut x, base) = (at[0], at[1] + scaled.ascent());
    for c in text.chars() {
        let id = scaled.glyph_id(c);
        let glyph = id.with_scale_and_position(PxScale::from(height), point(x, base));
        x += scaled.h_advance(id);
        if let Some(outline) = font.outline_glyph(glyph) {
            let corner = outline.px_bounds().min;
            outline.draw(|dx, dy, part| {
                let (x, y) = (corner.x as i64 + i64::from(dx), corner.y as i64 + i64::from(dy));
                mix(picture, x, y, colour, part.min(1.0));
            });
        }
    }
}

/// A text on a filled background above a point, or below it if there is no room.
pub fn label(picture: &mut RgbImage, what: &str, at: [f32; 2], height: f32, ground: Rgb<u8>) {
    let size = [text_width(what, height) + height / 2.0, height * 1.2];
    let room = [
        picture.width() as f32 - size[0],
        picture.height() as f32 - size[1],
    ];
    let y = if at[1] >= size[1] { at[1] - size[1] } else { at[1] };
    let corner = [at[0].min(room[0]).max(0.0), y.min(room[1]).max(0.0)];
    fill(picture, corner, size, ground);
    text(
        picture,
        what,
        [corner[0] + height / 4.0, corner[1] + height * 0.1],
        height,
        Rgb([255; 3]),
    );
}
