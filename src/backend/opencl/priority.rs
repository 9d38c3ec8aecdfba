//! Priorities as drivers support them: Qualcomm's as context properties, Khronos' as queue
//! properties.
//!
//! A driver may list an extension and refuse it when it is used. The backend then works without it
//! and logs a warning.
//!
//! Clock rates are independent of priority. `cl_qcom_perf_hint` defaults to the highest, and lower
//! ones would keep the device busy for longer, so only [`Priority::High`] sets it, for drivers with
//! another default.

use super::device::{platform_text, version_of};
use super::driver::{Code, Context, DeviceHandle, Queue, number, text};
use crate::backend::{BackendError, Priority};
use opencl3::device as api;
use opencl3::platform::platform as platform_api;
use opencl3::types::{cl_context_properties, cl_platform_id, cl_queue_properties};

/// `CL_CONTEXT_PERF_HINT_QCOM` and `CL_PERF_HINT_HIGH_QCOM` of `cl_qcom_perf_hint`.
const PERF_HINT_QCOM: [cl_context_properties; 2] = [0x40c2, 0x40c3];
/// `CL_CONTEXT_PRIORITY_HINT_QCOM` of `cl_qcom_priority_hint`.
const PRIORITY_HINT_QCOM: cl_context_properties = 0x40c9;
/// `CL_QUEUE_PRIORITY_KHR` of `cl_khr_priority_hints`.
const QUEUE_PRIORITY_KHR: cl_queue_properties = 0x1096;

/// The priority extensions that a driver lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    context_priority: bool,
    context_clocks: bool,
    queue_priority: bool,
}

impl Hints {
    /// The extensions of a device and of its platform, as lists. The specification puts queue
    /// priorities in the platform's list; drivers also put them in the device's.
    pub(super) fn listed(device: &str, platform: &str) -> Self {
        let has = |list: &str, extension: &str| list.split_whitespace().any(|e| e == extension);
        Self {
            context_priority: has(device, "cl_qcom_priority_hint"),
            context_clocks: has(device, "cl_qcom_perf_hint"),
            queue_priority: has(device, "cl_khr_priority_hints") || has(platform, "cl_khr_priority_hints"),
        }
    }

    /// Like [`Hints::listed`], queried from the driver; none if the query fails.
    pub(super) fn of(device: DeviceHandle) -> Self {
        let extensions = device
            .info(api::CL_DEVICE_EXTENSIONS)
            .map_or_else(|_| String::new(), |b| text(&b));
        let platform = device.info(api::CL_DEVICE_PLATFORM).ok();
        let platform = platform.and_then(|b| usize::try_from(number(&b)).ok());
        let platform = platform.unwrap_or_default() as cl_platform_id;
        let of_platform = platform_text(platform, platform_api::CL_PLATFORM_EXTENSIONS).unwrap_or_default();
        let version = device.info(api::CL_DEVICE_VERSION).map(|b| text(&b));
        let hints = Self::listed(&extensions, &of_platform);
        hints.of_version(version.ok().as_deref().and_then(version_of))
    }

    /// Queues take properties since OpenCL 2.0. In function tables of older drivers that entry is
    /// not a valid function.
    fn of_version(self, version: Option<(u32, u32)>) -> Self {
        Self {
            queue_priority: self.queue_priority && version.is_some_and(|v| v >= (2, 0)),
            ..self
        }
    }

    /// Whether a priority has an effect.
    pub(super) fn any_priority(self) -> bool {
        self.context_priority || self.queue_priority
    }

    fn of_context(self, priority: Option<Priority>) -> Vec<cl_context_properties> {
        let mut properties = Vec::new();
        let Some(priority) = priority else {
            return properties;
        };
        if self.context_priority {
            // `CL_PRIORITY_HINT_HIGH_QCOM`, `_NORMAL_` and `_LOW_`.
            let hint = match priority {
                Priority::High => 0x40ca,
                Priority::Normal => 0x40cb,
                Priority::Low => 0x40cc,
            };
            properties.extend([PRIORITY_HINT_QCOM, hint]);
        }
        if self.context_clocks && priority == Priority::High {
            properties.extend(PERF_HINT_QCOM);
        }
        properties
    }

    fn of_queue(self, priority: Option<Priority>) -> Vec<cl_queue_properties> {
        match priority {
            Some(priority) if self.queue_priority => {
                // `CL_QUEUE_PRIORITY_HIGH_KHR`, `_MED_` and `_LOW_`.
                let bit = match priority {
                    Priority::High => 1 << 0,
                    Priority::Normal => 1 << 1,
                    Priority::Low => 1 << 2,
                };
                vec![QUEUE_PRIORITY_KHR, bit]
            }
            _ => Vec::new(),
        }
    }
}

/// A context and its first queue, with the hints that the driver accepted.
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) queue: Queue,
    pub(super) hints: Hints,
}

/// Makes an object with properties for hints, or without them if the driver of the device called
/// `name` refuses `what` they are; also returns whether it takes them.
fn hinted<P, T>(
    name: &str,
    what: &str,
    properties: &[P],
    make: impl Fn(&[P]) -> Result<T, Code>,
) -> Result<(T, bool), Code> {
    match make(properties) {
        Err(code) if !properties.is_empty() => {
            let plain = make(&[])?;
            log::warn!("{name}: the driver lists {what} but refuses it: {code}");
            Ok((plain, false))
        }
        made => made.map(|made| (made, true)),
    }
}

/// Opens the device called `name` with this priority, without the hints that its driver refuses;
/// `timed` requests a queue that measures times.
pub(super) fn open(
    device: DeviceHandle,
    name: &str,
    mut hints: Hints,
    priority: Option<Priority>,
    timed: bool,
) -> Result<Opened, BackendError> {
    let properties = hints.of_context(priority);
    let (context, takes) = hinted(name, "the priority of a context", &properties, |properties| {
        Context::new(device, properties)
    })
    .map_err(|code| code.at(format!("clCreateContext on {name}")))?;
    hints.context_priority &= takes;
    hints.context_clocks &= takes;
    let properties = hints.of_queue(priority);
    let (queue, takes) = hinted(name, "the priority of a queue", &properties, |properties| {
        context.queue(device, timed, properties)
    })
    .map_err(|code| code.at(format!("clCreateCommandQueue on {name}")))?;
    hints.queue_priority &= takes;
    Ok(Opened {
        context,
        queue,
        hints,
    })
}

/// A further queue that measures times, with the priority of the first.
pub(super) fn timed_queue(
    context: &Context,
    device: DeviceHandle,
    hints: Hints,
    priority: Option<Priority>,
) -> Result<Queue, BackendError> {
    let queue = context.queue(device, true, &hints.of_queue(priority));
    queue.map_err(|code| code.at("clCreateCommandQueue with CL_QUEUE_PROFILING_ENABLE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_properties_of_what_takes_them() {
        let none = Hints::listed("cl_khr_fp16 cl_qcom_priority_hint_not", "");
        assert_eq!(none, Hints::default());
        assert!(!none.any_priority());
        let adreno = Hints::listed("cl_qcom_perf_hint cl_qcom_priority_hint", "");
        let mali = Hints::listed("cl_khr_priority_hints", "");
        assert_eq!(mali.of_version(Some((2, 0))), mali);
        assert_eq!(adreno.of_version(Some((1, 2))), adreno, "of the context");
        for old in [Some((1, 2)), None] {
            assert_eq!(mali.of_version(old), Hints::default());
        }
        assert_eq!(mali, Hints::listed("", "cl_khr_icd cl_khr_priority_hints"));
        assert!(adreno.any_priority() && mali.any_priority());
        assert_eq!(adreno.of_context(Some(Priority::Low)), [0x40c9, 0x40cc]);
        assert_eq!(
            adreno.of_context(Some(Priority::High)),
            [0x40c9, 0x40ca, 0x40c2, 0x40c3]
        );
        assert_eq!(mali.of_queue(Some(Priority::Low)), [0x1096, 4]);
        assert_eq!(mali.of_queue(Some(Priority::High)), [0x1096, 1]);
        assert!(
            adreno.of_queue(Some(Priority::Low)).is_empty()
                && mali.of_context(Some(Priority::Low)).is_empty()
        );
        assert!(adreno.of_context(None).is_empty() && mali.of_queue(None).is_empty());
    }
}
