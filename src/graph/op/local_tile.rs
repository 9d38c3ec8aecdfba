//! Tiles of results that work-groups compute by way of local memory.

use crate::backend::Caps;
use crate::plan::lower::Call;

/// What a work-group computes. Its work-items have 4 x 4 results each; where there are more work-items than that takes, they
/// share the places of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::graph::op) struct Tile {
    /// Rows of results, a multiple of 4.
    pub rows: i64,
    /// Columns of results, a multiple of 4.
    pub columns: i64,
    /// Places of the sums that are in local memory at a time: a power of two, 32 or more.
    depth: i64,
    /// Work-items.
    pub items: u32,
}

const fn tile(rows: i64, columns: i64, depth: i64, items: u32) -> Tile {
    Tile {
        rows,
        columns,
        depth,
        items,
    }
}

/// Tiles for many rows, the largest first: the larger the less often an operand is read, the smaller the more work-groups there
/// are. Each takes up to 16 KiB.
const TILES: [Tile; 5] = [
    tile(64, 64, 32, 256),
    tile(32, 64, 32, 128),
    tile(16, 64, 32, 128),
    tile(32, 32, 64, 256),
    tile(16, 16, 128, 256),
];
/// The tile for up to four rows, of which the columns matter alone.
const FLAT: Tile = tile(4, 16, 128, 128);
/// Results on an axis without a bound; of batches without one a single one is assumed.
const UNBOUND: i64 = 256;

impl Tile {
    /// It is not for more than half empty, and where it is wider than high its rows are all that there are.
    fn suits(&self, rows: i64) -> bool {
        let high = self.rows > TILES[2].rows && self.rows >= 2 * rows;
        !high && (self.rows == self.columns || self.rows >= rows)
    }

    /// The tile for `batches` products of at most `rows x columns` results, as far as these are bound; `None` on a device that gains nothing by
    /// local memory or has too little of it. The largest tile that is filled and gives every compute unit work is taken.
    pub fn of(caps: &Caps, rows: Option<i64>, columns: Option<i64>, batches: Option<i64>) -> Option<Self> {
        let fits = |t: &Self| t.pool() * 16 <= i64::from(caps.local_bytes) && t.items <= caps.max_workgroup;
        if !caps.fast_local {
            return None;
        }
        let [rows, columns] = [rows, columns].map(|d| d.unwrap_or(UNBOUND).max(1));
        let batches = batches.unwrap_or(1).max(1);
        if rows <= FLAT.rows {
            return Some(FLAT).filter(fits);
        }
        let tiles = |all: i64, each: i64| (all - 1) / each + 1;
        let groups = |t: &Self| {
            let plane = tiles(rows, t.rows).saturating_mul(tiles(columns, t.columns));
            plane.saturating_mul(batches)
        };
        let mut fitting = TILES.iter().filter(|t| fits(t) && t.suits(rows));
        let full = fitting
            .clone()
            .find(|t| groups(t) >= i64::from(caps.assumed_units()));
        full.or(fitting.next_back()).copied()
    }

    /// Work-items that sum over different places for the same results.
    fn split(&self) -> i64 {
        i64::from(self.items) * 16 / (self.rows * self.columns)
    }

    /// Vectors of four floats of local memory: a block of both operands, and afterwards the sums of all work-items.
    fn pool(&self) -> i64 {
        let blocks = (self.rows + self.columns) * self.depth / 4;
        let sums = 4 * i64::from(self.items);
        if self.split() > 1 {
            blocks.max(sums)
        } else {
            blocks
        }
    }

    /// Adds the tile to what a kernel is specialised by.
    pub fn define(&self, call: Call) -> Call {
        let call = call
            .define("TM", self.rows)
            .define("TN", self.columns)
            .define("KB", self.depth)
            .define("POOL", self.pool());
        match self.split() {
            1 => call,
            split => call.define("SPLIT", split),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::DeviceKind;

    fn caps(units: u32) -> Caps {
        Caps {
            fast_local: true,
            units,
            ..Caps::neutral()
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

    #[test]
    fn small_products_get_small_tiles() {
        let of = |caps: &Caps, rows, columns| Tile::of(caps, rows, columns, Some(1)).unwrap().rows;
        assert_eq!(of(&caps(132), Some(50), Some(768)), 16);
        assert_eq!(of(&caps(132), Some(50), Some(3072)), 32);
        assert_eq!(of(&caps(132), Some(4096), Some(4096)), 64);
        assert_eq!(of(&caps(8), Some(50), Some(768)), 64);
        assert_eq!(of(&caps(132), Some(1), Some(1000)), 4);
        assert_eq!(of(&caps(0), None, Some(384)), 64);
        let discrete = Caps {
            kind: DeviceKind::Discrete,
            ..caps(0)
        };
        assert_eq!(of(&discrete, None, Some(384)), 32);
        let batches = Tile::of(&caps(132), Some(768), Some(49), None).unwrap();
        assert_eq!(batches.rows, 16, "as for one batch");
        assert_eq!(of(&caps(100_000), Some(4096), Some(4096)), 16);
        assert_eq!(
            Tile::of(&caps(132), Some(50), Some(64), Some(12)).unwrap().rows,
            16
        );
    }

    #[test]
    fn few_rows_get_wide_tiles() {
        let of = |rows, columns| {
            let t = Tile::of(&caps(132), Some(rows), Some(columns), Some(1)).unwrap();
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
    fn devices_without_room_have_none() {
        let small = Caps {
            local_bytes: 8 << 10,
            ..caps(8)
        };
        assert_eq!(Tile::of(&small, Some(50), Some(768), Some(1)), None);
        let few = Caps {
            max_workgroup: 128,
            ..caps(8)
        };
        assert_eq!(Tile::of(&few, Some(50), Some(768), Some(1)), None);
        assert_eq!(Tile::of(&few, Some(30), Some(768), Some(1)), Some(TILES[1]));
        assert_eq!(Tile::of(&few, Some(1), Some(768), Some(1)), Some(FLAT));
        assert_eq!(
            Tile::of(&Caps::neutral(), Some(50), Some(768), Some(1)),
            None,
            "a phone"
        );
    }
}
