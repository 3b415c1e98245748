//! What is known of the way to an environment while bytes go there or come from there: how many may be on their way at once, and whether
//! it is worth to compress them.
//!
//! The window follows bandwidth × delay: as long as more on the way brings more through, it grows, and where the way is short it stays
//! small. Bytes are compressed as long as that takes less time than it saves on the way.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use outpost_wire::exec::packs::Compression;
use outpost_wire::packed;

/// Blocks that may be on their way at once, at first, at least and at most.
const FIRST: usize = 8;
const LEAST: usize = 4;
pub(crate) const MOST: usize = 128;
/// A rate that is not reached again counts less with every delivery.
const FADE: f64 = 0.98;
/// How often is tried what compression brings, in deliveries.
const TRIAL: u64 = 64;
/// What saves less than this is sent as it is.
const WORTH: f64 = 0.9;

/// One direction of one environment.
pub(crate) struct Pace {
    block: usize,
    figures: Mutex<Figures>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    /// Bytes that came through so far, as they were on the way.
    delivered: u64,
    deliveries: u64,
    /// Bytes a second, the best of late.
    rate: f64,
    /// The shortest that a block took.
    delay: Option<Duration>,
    /// What compression made of a block, as a share of it, and how many bytes of a block it took a second.
    squeeze: Option<Squeeze>,
}

#[derive(Debug, Clone, Copy)]
struct Squeeze {
    share: f64,
    speed: f64,
}

/// A block on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Departure {
    at: Instant,
    delivered: u64,
}

impl Pace {
    /// For blocks of so many bytes.
    pub(crate) fn new(block: usize) -> Self {
        Self { block, figures: Mutex::default() }
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many blocks may be on their way now.
    pub(crate) fn window(&self) -> usize {
        let figures = *self.figures();
        let Some(delay) = figures.delay else { return FIRST };
        // Twice what fits the way: half of it is there while the other half is told of.
        let blocks = 2.0 * figures.rate * delay.as_secs_f64() / self.block as f64;
        (blocks as usize + 2).clamp(LEAST, MOST)
    }

    pub(crate) fn depart(&self, at: Instant) -> Departure {
        Departure { at, delivered: self.figures().delivered }
    }

    /// So many bytes, as they were on the way, have come through.
    pub(crate) fn arrive(&self, departure: Departure, bytes: usize, at: Instant) {
        let mut figures = self.figures();
        figures.delivered += bytes as u64;
        figures.deliveries += 1;
        let took = at.saturating_duration_since(departure.at).max(Duration::from_micros(1));
        figures.delay = Some(figures.delay.map_or(took, |delay| delay.min(took)));
        let rate = (figures.delivered - departure.delivered) as f64 / took.as_secs_f64();
        figures.rate = rate.max(figures.rate * FADE);
    }

    /// Whether it is time to try what compression brings.
    pub(crate) fn is_trial(&self) -> bool {
        let figures = self.figures();
        figures.squeeze.is_none() || figures.deliveries.is_multiple_of(TRIAL)
    }

    /// So many bytes were compressed to so many in so long.
    pub(crate) fn note_trial(&self, raw: usize, packed: usize, took: Duration) {
        if raw > 0 {
            let took = took.max(Duration::from_micros(1));
            self.figures().squeeze = Some(Squeeze { share: packed as f64 / raw as f64, speed: raw as f64 / took.as_secs_f64() });
        }
    }

    /// How the next bytes are to go.
    pub(crate) fn compression(&self) -> Option<Compression> {
        let figures = *self.figures();
        let squeeze = figures.squeeze.filter(|squeeze| squeeze.share < WORTH && figures.rate > 0.0)?;
        let saved = (1.0 - squeeze.share) / figures.rate;
        (saved > 1.0 / squeeze.speed).then_some(Compression::Zstd)
    }

    /// Compresses on a thread that may take its time, and notes what it brings.
    pub(crate) async fn compress(&self, raw: Bytes) -> (Bytes, Option<Compression>) {
        let (length, given) = (raw.len(), raw.clone());
        let packed = tokio::task::spawn_blocking(move || {
            let since = Instant::now();
            (packed::compress(&given), since.elapsed())
        });
        let Ok((packed, took)) = packed.await else { return (raw, None) };
        self.note_trial(length, packed.as_ref().map_or(length, Vec::len), took);
        packed.map_or((raw, None), |packed| (packed.into(), Some(Compression::Zstd)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 1 << 19;

    /// Blocks over a way of so many bytes a second and so much delay, until the window settles.
    fn settled(rate: f64, delay: Duration) -> Pace {
        let pace = Pace::new(BLOCK);
        let start = Instant::now();
        let (mut now, mut free) = (Duration::ZERO, Duration::ZERO);
        let mut going = std::collections::VecDeque::new();
        for _ in 0..2000 {
            while going.len() < pace.window() {
                // The way takes one block after the other, and each then needs the delay.
                free = free.max(now) + Duration::from_secs_f64(BLOCK as f64 / rate);
                going.push_back((pace.depart(start + now), free + delay));
            }
            let (departure, due) = going.pop_front().unwrap();
            now = now.max(due);
            pace.arrive(departure, BLOCK, start + now);
        }
        pace
    }

    #[test]
    fn the_window_is_bandwidth_times_delay() {
        // 100 MB/s and 100 ms: 10 MB, 20 blocks, are on the way.
        let window = settled(100e6, Duration::from_millis(100)).window();
        assert!((20..=60).contains(&window), "{window}");
        // 1 GB/s and 100 ms: more than may be in memory.
        assert_eq!(settled(1e9, Duration::from_millis(100)).window(), MOST);
        // At home next to nothing is.
        let window = settled(1e9, Duration::from_micros(50)).window();
        assert!(window <= 8, "{window}");
    }

    #[test]
    fn a_slow_way_is_worth_compression_and_a_fast_one_is_not() {
        for (rate, share, expected) in [
            (10e6, 0.3, Some(Compression::Zstd)),
            (10e6, 0.95, None),
            (3e9, 0.3, None),
            // 400 MB/s are compressed: half of the bytes of a way of 300 MB/s is worth less than that.
            (300e6, 0.5, None),
            (100e6, 0.5, Some(Compression::Zstd)),
        ] {
            let pace = settled(rate, Duration::from_millis(1));
            assert_eq!(pace.compression(), None, "nothing is known yet");
            assert!(pace.is_trial());
            pace.note_trial(BLOCK, (BLOCK as f64 * share) as usize, Duration::from_secs_f64(BLOCK as f64 / 400e6));
            assert_eq!(pace.compression(), expected, "{rate} {share}");
        }
    }
}
