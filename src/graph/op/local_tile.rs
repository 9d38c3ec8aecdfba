//! Tiles of results that work-groups compute in local memory.

use crate::backend::kernel::Kernel;
use crate::lower::{Call, DeviceProfile};
use crate::shape::Dim;

/// Tile of a work-group. Each work-item computes 4 x 4 results; additional work-items split the
/// terms of the sums (split-k).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalTile {
    /// Rows of results, a multiple of 4.
    pub rows: i64,
    /// Columns of results, a multiple of 4.
    pub columns: i64,
    /// K-block in local memory: a power of two, 32 or more.
    depth: i64,
    /// Work-items per work-group.
    pub items: u32,
}

const fn tile(rows: i64, columns: i64, depth: i64, items: u32) -> LocalTile {
    LocalTile {
        rows,
        columns,
        depth,
        items,
    }
}

/// Tiles for many rows, the largest first. Larger tiles read operands less often, smaller ones give
/// more work-groups. Each uses up to 16 KiB.
const TILES: [LocalTile; 5] = [
    tile(64, 64, 32, 256),
    tile(32, 64, 32, 128),
    tile(16, 64, 32, 128),
    tile(32, 32, 64, 256),
    tile(16, 16, 128, 256),
];
/// The tile for up to four rows, where only columns matter.
const FLAT: LocalTile = tile(4, 16, 128, 128);
/// Narrowest tile besides `FLAT`: narrower results leave every tile mostly empty.
const NARROW: i64 = 16;
/// Assumed number of results on an axis without a bound.
const UNBOUND: i64 = 256;
/// Assumed number of results on an unbounded image plane.
const UNBOUND_PLANE: i64 = 64 * 64;

/// Upper bounds on the results of a dispatch; `None` if unbounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub rows: Option<i64>,
    pub columns: Option<i64>,
    /// The columns are the positions of an image.
    pub plane: bool,
    /// Number of matmuls; one is assumed if unbounded.
    pub batches: Option<i64>,
}

impl LocalTile {
    /// True if the tile is at most half empty along either axis, and, if it is wider than high,
    /// holds all rows.
    fn suits(&self, rows: i64, columns: i64) -> bool {
        let sparse = |size: i64, used: i64| size > NARROW && size / 2 >= used;
        let whole = self.rows == self.columns || self.rows >= rows;
        whole && !sparse(self.rows, rows) && !sparse(self.columns, columns)
    }

    /// The tile for matmuls of this extent with `kernel`: the largest one that is filled and gives
    /// every compute unit work. `None` if the device does not support the kernel or has too little
    /// local memory.
    pub fn of(kernel: &'static Kernel, device: &DeviceProfile, extent: Extent) -> Option<Self> {
        let fits =
            |t: &Self| t.pool() * 16 <= i64::from(device.local_bytes) && t.items <= device.max_workgroup;
        if !device.supports(kernel) {
            return None;
        }
        let batches = extent.batches.unwrap_or(1).max(1);
        let rows = extent.rows.unwrap_or(UNBOUND).max(1);
        let unbound = if extent.plane { UNBOUND_PLANE } else { UNBOUND };
        let columns = extent.columns.unwrap_or(unbound).max(1);
        if rows <= FLAT.rows {
            return Some(FLAT).filter(fits);
        }
        let tiles = |all: i64, each: i64| (all - 1) / each + 1;
        let groups = |t: &Self| {
            let plane = tiles(rows, t.rows).saturating_mul(tiles(columns, t.columns));
            plane.saturating_mul(batches)
        };
        let mut fitting = TILES.iter().filter(|t| fits(t) && t.suits(rows, columns));
        let full = fitting
            .clone()
            .find(|t| groups(t) >= i64::from(device.assumed_compute_units()));
        full.or(fitting.next_back()).copied()
    }

    /// Number of work-items that split the sums of the same results.
    fn split(&self) -> i64 {
        i64::from(self.items) * 16 / (self.rows * self.columns)
    }

    /// Local memory in vectors of four floats: a block of both operands, later reused for the
    /// partial sums.
    fn pool(&self) -> i64 {
        let blocks = (self.rows + self.columns) * self.depth / 4;
        let sums = 4 * i64::from(self.items);
        if self.split() > 1 {
            blocks.max(sums)
        } else {
            blocks
        }
    }

    /// Specializes a kernel for this tile and for vector access: rows of the left operand have
    /// `depth` elements, rows of the right one `stride` (if it is stored by rows), rows of results
    /// `all`.
    pub fn define<A>(&self, call: Call<A>, depth: &Dim, stride: Option<&Dim>, all: &Dim) -> Call<A> {
        let whole = |d: &Dim, by: i64| d.exact_div(&by.into()).is_some();
        let flags = [
            ("A4", whole(depth, 4)),
            ("B4", stride.is_some_and(|d| whole(d, 4))),
            ("Y4", whole(all, 4)),
            ("ODD", !whole(all, 2)),
        ];
        let call = call
            .define("TM", self.rows)
            .define("TN", self.columns)
            .define("KB", self.depth)
            .define("POOL", self.pool());
        let call = match self.split() {
            1 => call,
            split => call.define("SPLIT", split),
        };
        let set = flags.into_iter().filter(|(_, set)| *set);
        set.fold(call, |call, (name, _)| call.define(name, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For a kernel of these tiles.
    fn tile_of(device: &DeviceProfile, extent: Extent) -> Option<LocalTile> {
        LocalTile::of(&crate::kernels::matmul::TILED, device, extent)
    }

    fn device(compute_units: u32) -> DeviceProfile {
        DeviceProfile {
            fast_local: true,
            compute_units,
            ..DeviceProfile::generic_gpu()
        }
    }

    #[test]
    fn work_items_share_blocks_and_places_evenly() {
        for t in TILES.iter().chain([&FLAT]) {
            let items = i64::from(t.items);
            let places = t.rows / 4 * (t.columns / 4);
            assert!(t.pool() * 16 <= 16_384, "{t:?}");
            assert_eq!(items % places, 0, "{t:?}");
            assert!(
                t.depth.count_ones() == 1 && t.depth / 4 >= 8,
                "rows are turned within 8 vectors: {t:?}"
            );
            assert_eq!(t.depth / 4 % t.split(), 0, "{t:?}");
            for side in [t.rows, t.columns] {
                assert_eq!(side * t.depth / 4 % items, 0, "{t:?}");
            }
        }
    }

    fn extent(rows: i64, columns: i64) -> Extent {
        Extent {
            rows: Some(rows),
            columns: Some(columns),
            plane: false,
            batches: Some(1),
        }
    }

    #[test]
    fn small_products_get_small_tiles() {
        let of = |device: &DeviceProfile, e: Extent| tile_of(device, e).unwrap().rows;
        assert_eq!(of(&device(132), extent(50, 768)), 16);
        assert_eq!(of(&device(132), extent(50, 3072)), 32);
        assert_eq!(of(&device(132), extent(4096, 4096)), 64);
        assert_eq!(of(&device(8), extent(50, 768)), 64);
        assert_eq!(of(&device(132), extent(1, 1000)), 4);
        let open = Extent {
            rows: None,
            ..extent(1, 384)
        };
        assert_eq!(of(&device(0), open), 64);
        let discrete = DeviceProfile {
            dedicated_memory: true,
            ..device(0)
        };
        assert_eq!(of(&discrete, open), 32);
        let batches = |batches, e| Extent { batches, ..e };
        let one = of(&device(132), batches(None, extent(768, 49)));
        assert_eq!(one, 16, "as for one batch");
        assert_eq!(of(&device(100_000), extent(4096, 4096)), 16);
        assert_eq!(of(&device(132), batches(Some(12), extent(50, 64))), 16);
    }

    #[test]
    fn axes_without_a_bound_are_assumed_to_be_long() {
        let open = |plane| Extent {
            rows: Some(64),
            columns: None,
            plane,
            batches: None,
        };
        let of = |plane| tile_of(&device(64), open(plane)).unwrap();
        assert_eq!(of(false).rows, 16, "256 columns");
        assert_eq!(of(true).rows, 64, "4096 places");
    }

    #[test]
    fn few_rows_get_wide_tiles() {
        let of = |rows, columns| {
            let t = tile_of(&device(132), extent(rows, columns)).unwrap();
            (t.rows, t.columns)
        };
        assert_eq!(of(16, 25_600), (16, 64));
        assert_eq!(of(8, 25_600), (16, 64));
        assert_eq!(of(32, 25_600), (32, 64));
        assert_eq!(of(17, 25_600), (32, 64));
        assert_eq!(of(33, 25_600), (64, 64));
        assert_eq!(of(32, 6400), (32, 32), "more work-groups");
        assert_eq!(of(16, 1600), (16, 16));
    }

    #[test]
    fn few_columns_get_narrow_tiles() {
        let of = |columns| tile_of(&device(8), extent(65_536, columns)).unwrap().columns;
        assert_eq!([1, 2, 16].map(of), [16; 3]);
        assert_eq!([17, 32].map(of), [32; 2]);
        assert_eq!([33, 64, i64::MAX].map(of), [64; 3]);
        let tall = tile_of(&device(8), extent(i64::MAX, 64)).unwrap();
        assert_eq!(tall.rows, 64, "any number of rows");
    }

    #[test]
    fn devices_without_room_have_none() {
        let small = DeviceProfile {
            local_bytes: 8 << 10,
            ..device(8)
        };
        assert_eq!(tile_of(&small, extent(50, 768)), None);
        let few = DeviceProfile {
            max_workgroup: 128,
            ..device(8)
        };
        assert_eq!(tile_of(&few, extent(50, 768)), None);
        assert_eq!(tile_of(&few, extent(30, 768)), Some(TILES[1]));
        assert_eq!(tile_of(&few, extent(1, 768)), Some(FLAT));
        assert_eq!(
            tile_of(&DeviceProfile::generic_gpu(), extent(50, 768)),
            None,
            "a phone"
        );
    }
}
