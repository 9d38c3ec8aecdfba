//! Images that are made from buffers.
//!
//! A kernel that reads an image sees what kernels before it wrote to the buffer: the queue is in order, and commands that are done make their
//! writes to a buffer visible to those behind them through every object that is made from it. Within one dispatch the memory of an image is
//! only read, as [`crate::backend`] promises of operands.

use super::driver::{Context, DeviceHandle, number};
use crate::backend::image::{ImageKind, Images, Pixel, ROW_PIXELS};
use crate::backend::{BackendError, Caps, ImageUse};
use opencl3::device as api;

/// What the driver lists. Numbers of OpenCL 3.0 are 0 where the driver has no such images; one that it does not know leaves them out too.
pub(super) fn listed(device: DeviceHandle, version: (u32, u32), has: impl Fn(&str) -> bool) -> Images {
    let value = |name| device.info(name).map_or(0, |b| number(&b));
    let clamped = |name| u32::try_from(value(name)).unwrap_or(u32::MAX);
    if value(api::CL_DEVICE_IMAGE_SUPPORT) == 0 {
        return Images::default();
    }
    let listed = Images {
        max_pixels: value(api::CL_DEVICE_IMAGE_MAX_BUFFER_SIZE),
        max_rows: value(api::CL_DEVICE_IMAGE2D_MAX_HEIGHT),
        pitch_align: clamped(api::CL_DEVICE_IMAGE_PITCH_ALIGNMENT),
        base_align: clamped(api::CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT),
        reads: None,
    };
    let from_buffer = has("cl_khr_image2d_from_buffer") || (version >= (2, 0) && version < (3, 0));
    let fits = |align: u32| align.is_power_of_two() && u64::from(align) <= ROW_PIXELS;
    let wide = value(api::CL_DEVICE_IMAGE2D_MAX_WIDTH) >= ROW_PIXELS;
    if from_buffer && wide && fits(listed.pitch_align) && fits(listed.base_align.max(1)) {
        listed
    } else {
        listed.without(ImageKind::Image2d)
    }
}

/// Why the driver makes no images of a kind; nothing where it makes one of each pixel from a part of a buffer.
fn refusal(context: &Context, caps: &Caps, kind: ImageKind) -> Option<String> {
    let align = caps.view_align.max(caps.images.room());
    let room = usize::try_from(align).ok()?;
    let tried = || -> Result<(), String> {
        let buffer = context
            .buffer(2 * room)
            .map_err(|code| format!("clCreateBuffer: {code}"))?;
        let part = buffer.sub_buffer(room, room);
        let part = part.map_err(|code| format!("clCreateSubBuffer: {code}"))?;
        for pixel in Pixel::ALL {
            let shape = caps.images.shape(kind, pixel, align);
            let shape = shape.ok_or_else(|| format!("{align} bytes are more than it can hold"))?;
            let made = context.image(&part, kind, pixel, shape);
            made.map_err(|code| format!("clCreateImage of {pixel:?} from a sub-buffer: {code}"))?;
        }
        Ok(())
    };
    tried().err()
}

/// The images that the driver makes, of those that `caps` lists, and which plans use: those that are asked for, by default those of
/// Adreno, whose texture caches are faster than what loads go through. On Mali drivers read them no faster, and some of Bifrost and before
/// it fail with images in parts of buffers.
pub(super) fn open(context: &Context, caps: &Caps, asked: ImageUse) -> Result<Images, BackendError> {
    if asked == ImageUse::Off {
        return Ok(Images::default());
    }
    let mut images = caps.images;
    let mut refused = Vec::new();
    for kind in ImageKind::ALL
        .into_iter()
        .filter(|kind| caps.images.offers(*kind))
    {
        if let Some(why) = refusal(context, caps, kind) {
            log::debug!("opencl: {} makes no {kind} from buffers: {why}", caps.device);
            images = images.without(kind);
            refused.push(format!("{kind}: {why}"));
        }
    }
    let offered = |kind: &ImageKind| images.offers(*kind);
    images.reads = match asked {
        ImageUse::Off => None,
        ImageUse::Of(kind) if images.offers(kind) => Some(kind),
        ImageUse::Of(kind) => {
            let why = refused.iter().find(|r| r.starts_with(kind.name()));
            return Err(BackendError::Driver {
                call: format!("reading operands through {kind}"),
                why: why
                    .cloned()
                    .unwrap_or_else(|| format!("{} offers none in buffers", caps.device)),
            });
        }
        ImageUse::Auto if caps.is_called("adreno") => {
            let found = ImageKind::ALL.into_iter().find(offered);
            if found.is_none() && !refused.is_empty() {
                log::warn!(
                    "{}: kernels read buffers in place of images: {}",
                    caps.device,
                    refused.join("; ")
                );
            }
            found
        }
        ImageUse::Auto => None,
    };
    Ok(images)
}
