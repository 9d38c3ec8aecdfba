//! Drivers that fail at one call, and what is left behind: each run ends with the right answer or
//! with one error, and the next one without a fault is what it would have been.

mod backend;
mod opencl;

use tlite_testing::suite::Suite;

pub fn trials(suite: &mut Suite) {
    opencl::trials(suite);
    backend::trials(suite);
}

/// Up to `most` numbers from 1 to `last`, the first and the last among them, at equal distances.
fn spread(last: u64, most: u64) -> Vec<u64> {
    let count = most.min(last);
    if count < 2 {
        return (1..=count).collect();
    }
    (0..count).map(|i| 1 + i * (last - 1) / (count - 1)).collect()
}
