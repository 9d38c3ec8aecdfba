//! Images that are made from buffers.
//!
//! A kernel that reads an image sees what kernels before it wrote to the buffer: the queue is in order, and commands that are done make their
//! writes to a buffer visible to those behind them through every object that is made from it. Within one dispatch the memory of an image is
//! only read, as [`crate::backend`] promises of operands.

use super::driver::{Context, DeviceHandle, Mem, number};
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

/// What plans use unless told otherwise: on Adreno, whose texture caches are faster than what loads go through, the first kind that is there. On
/// Mali drivers read images no faster, and some of Bifrost and before it fail with those in parts of buffers.
pub(super) fn preferred(caps: &Caps) -> Option<ImageKind> {
    let mut kinds = ImageKind::ALL.into_iter().filter(|_| caps.is_called("adreno"));
    kinds.find(|kind| caps.images.offers(*kind))
}

/// A part of a buffer, and the bytes that the part holds.
fn part(context: &Context, caps: &Caps) -> Result<(Mem, u64), String> {
    let bytes = caps.view_align.max(caps.images.room());
    let room = usize::try_from(bytes).map_err(|e| e.to_string())?;
    let buffer = context.buffer(2 * room);
    let buffer = buffer.map_err(|code| format!("clCreateBuffer: {code}"))?;
    let part = buffer.sub_buffer(room, room);
    Ok((part.map_err(|code| format!("clCreateSubBuffer: {code}"))?, bytes))
}

/// Makes an image of each pixel from a part of a buffer, or says why the driver does not.
fn try_all(
    context: &Context,
    caps: &Caps,
    (part, bytes): &(Mem, u64),
    kind: ImageKind,
) -> Result<(), String> {
    for pixel in Pixel::ALL {
        let shape = caps.images.shape(kind, pixel, *bytes);
        let shape = shape.ok_or_else(|| format!("{bytes} bytes are more than it holds"))?;
        let made = context.image(part, kind, pixel, shape);
        made.map_err(|code| format!("clCreateImage of {pixel:?} from a sub-buffer: {code}"))?;
    }
    Ok(())
}

/// The images that the driver makes of those that `caps` lists, and which plans use: those that are asked for, or [`preferred`] ones.
pub(super) fn open(context: &Context, caps: &Caps, asked: ImageUse) -> Result<Images, BackendError> {
    if asked == ImageUse::Off {
        return Ok(Images::default());
    }
    let mut found = caps.clone();
    let mut refused = Vec::new();
    let listed: Vec<_> = ImageKind::ALL
        .into_iter()
        .filter(|k| caps.images.offers(*k))
        .collect();
    if !listed.is_empty() {
        let part = part(context, caps);
        for kind in listed {
            let tried = part.as_ref().map_err(Clone::clone);
            if let Err(why) = tried.and_then(|part| try_all(context, caps, part, kind)) {
                log::debug!("opencl: {} makes no {kind} from buffers: {why}", caps.device);
                found.images = found.images.without(kind);
                refused.push(format!("{kind}: {why}"));
            }
        }
    }
    let wanted = match asked {
        ImageUse::Of(kind) => Some(kind),
        _ => preferred(&found),
    };
    if let (ImageUse::Of(kind), false) = (asked, wanted.is_some_and(|kind| found.images.offers(kind))) {
        let why = refused.into_iter().find(|r| r.starts_with(kind.name()));
        return Err(BackendError::Driver {
            call: format!("reading operands through {kind}"),
            why: why.unwrap_or_else(|| format!("{} offers none in buffers", caps.device)),
        });
    }
    if let (Some(_), None) = (caps.images.reads, wanted) {
        let why = refused.join("; ");
        log::warn!("{}: kernels read buffers in place of images: {why}", caps.device);
    }
    Ok(Images {
        reads: wanted,
        ..found.images
    })
}
