//! Policies that Larder's is held against, as their papers have them, on blocks of one size.

/// An id that is in no list.
const NONE: u32 = u32::MAX;

/// Lists of ids, of which each is in one list at most.
struct Lists<const N: usize> {
    of: Vec<u8>,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Newest and oldest.
    ends: [(u32, u32); N],
    lengths: [usize; N],
}

impl<const N: usize> Lists<N> {
    fn new(ids: usize) -> Self {
        Self {
            of: vec![u8::MAX; ids],
            next: vec![NONE; ids],
            previous: vec![NONE; ids],
            ends: [(NONE, NONE); N],
            lengths: [0; N],
        }
    }

    fn is_in(&self, id: u32, list: usize) -> bool {
        self.of[id as usize] == list as u8
    }

    fn len(&self, list: usize) -> usize {
        self.lengths[list]
    }

    fn oldest(&self, list: usize) -> Option<u32> {
        Some(self.ends[list].1).filter(|id| *id != NONE)
    }

    /// Moves an id, wherever it was, to the new end.
    fn push(&mut self, id: u32, list: usize) {
        self.remove(id);
        let at = id as usize;
        let newest = self.ends[list].0;
        (self.of[at], self.next[at], self.previous[at]) = (list as u8, newest, NONE);
        match newest {
            NONE => self.ends[list].1 = id,
            newest => self.previous[newest as usize] = id,
        }
        self.ends[list].0 = id;
        self.lengths[list] += 1;
    }

    fn pop(&mut self, list: usize) -> Option<u32> {
        let id = self.oldest(list)?;
        self.remove(id);
        Some(id)
    }

    fn remove(&mut self, id: u32) {
        let at = id as usize;
        let list = self.of[at] as usize;
        if list >= N {
            return;
        }
        let (next, previous) = (self.next[at], self.previous[at]);
        match previous {
            NONE => self.ends[list].0 = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.ends[list].1 = previous,
            next => self.previous[next as usize] = previous,
        }
        self.of[at] = u8::MAX;
        self.lengths[list] -= 1;
    }
}

/// Hits of a policy on a trace of ids below `ids` with room for so many blocks.
pub type Reference = fn(trace: &[u32], ids: usize, room: usize) -> usize;

/// Names and policies.
pub const REFERENCES: [(&str, Reference); 6] = [
    ("LRU", lru),
    ("ARC", arc),
    ("2Q", two_queues),
    ("LIRS", lirs),
    ("S3-FIFO", s3_fifo),
    ("W-TinyLFU", w_tiny_lfu),
];

pub fn lru(trace: &[u32], ids: usize, room: usize) -> usize {
    let mut lists = Lists::<1>::new(ids);
    let mut hits = 0;
    for &id in trace {
        if lists.is_in(id, 0) {
            hits += 1;
        } else if lists.len(0) == room {
            lists.pop(0);
        }
        lists.push(id, 0);
    }
    hits
}

/// N. Megiddo, D. Modha, FAST '03.
pub fn arc(trace: &[u32], ids: usize, room: usize) -> usize {
    const T1: usize = 0;
    const T2: usize = 1;
    const B1: usize = 2;
    const B2: usize = 3;
    let mut lists = Lists::<4>::new(ids);
    let (mut p, mut hits) = (0, 0);
    let replace = |lists: &mut Lists<4>, p: usize, is_in_b2: bool| {
        let t1 = lists.len(T1);
        let (from, to) = if t1 > 0 && (t1 > p || (is_in_b2 && t1 == p)) || lists.len(T2) == 0 {
            (T1, B1)
        } else {
            (T2, B2)
        };
        if let Some(id) = lists.pop(from) {
            lists.push(id, to);
        }
    };
    for &id in trace {
        if lists.is_in(id, T1) || lists.is_in(id, T2) {
            hits += 1;
            lists.push(id, T2);
        } else if lists.is_in(id, B1) {
            p = room.min(p + (lists.len(B2) / lists.len(B1)).max(1));
            replace(&mut lists, p, false);
            lists.push(id, T2);
        } else if lists.is_in(id, B2) {
            p = p.saturating_sub((lists.len(B1) / lists.len(B2)).max(1));
            replace(&mut lists, p, true);
            lists.push(id, T2);
        } else {
            let l1 = lists.len(T1) + lists.len(B1);
            if l1 == room {
                if lists.len(T1) < room {
                    lists.pop(B1);
                    replace(&mut lists, p, false);
                } else {
                    lists.pop(T1);
                }
            } else {
                let all = l1 + lists.len(T2) + lists.len(B2);
                if all >= room {
                    if all == 2 * room {
                        lists.pop(B2);
                    }
                    replace(&mut lists, p, false);
                }
            }
            lists.push(id, T1);
        }
    }
    hits
}

/// T. Johnson, D. Shasha, VLDB '94: a quarter for what was read once, ids of half as many as are cached.
pub fn two_queues(trace: &[u32], ids: usize, room: usize) -> usize {
    const IN: usize = 0;
    const OUT: usize = 1;
    const MAIN: usize = 2;
    let mut lists = Lists::<3>::new(ids);
    let (most_in, most_out) = ((room / 4).max(1), (room / 2).max(1));
    let mut hits = 0;
    for &id in trace {
        if lists.is_in(id, MAIN) {
            hits += 1;
            lists.push(id, MAIN);
            continue;
        }
        if lists.is_in(id, IN) {
            hits += 1;
            continue;
        }
        let is_known = lists.is_in(id, OUT);
        if lists.len(IN) + lists.len(MAIN) == room {
            if lists.len(IN) > most_in || lists.len(MAIN) == 0 {
                let out = lists.pop(IN).expect("it is not empty");
                if lists.len(OUT) == most_out && !is_known {
                    lists.pop(OUT);
                }
                lists.push(out, OUT);
                if lists.len(OUT) > most_out + usize::from(is_known) {
                    lists.pop(OUT);
                }
            } else {
                lists.pop(MAIN);
            }
        }
        lists.push(id, if is_known { MAIN } else { IN });
    }
    hits
}

/// S. Jiang, X. Zhang, SIGMETRICS '02: a hundredth for blocks with a long recency, twice as many ids as are cached.
pub fn lirs(trace: &[u32], ids: usize, room: usize) -> usize {
    let most_hot = (room - (room / 100).max(1)).max(1);
    let most_cold = room - most_hot;
    let mut stack = Lists::<1>::new(ids);
    // Cold blocks that are cached, and the ids of those that no longer are.
    const COLD: usize = 0;
    const GONE: usize = 1;
    let mut queue = Lists::<2>::new(ids);
    let mut is_hot = vec![false; ids];
    let (mut hot, mut hits) = (0, 0);
    for &id in trace {
        let at = id as usize;
        if is_hot[at] {
            hits += 1;
            stack.push(id, 0);
        } else {
            let is_cached = queue.is_in(id, COLD);
            hits += usize::from(is_cached);
            if hot < most_hot && !is_cached {
                (is_hot[at], hot) = (true, hot + 1);
                queue.remove(id);
                stack.push(id, 0);
                continue;
            }
            let is_recent = stack.is_in(id, 0);
            if !is_cached && queue.len(COLD) == most_cold.max(1) {
                let out = queue.pop(COLD).expect("it is not empty");
                if stack.is_in(out, 0) {
                    queue.push(out, GONE);
                }
            }
            stack.push(id, 0);
            if is_recent {
                is_hot[at] = true;
                queue.remove(id);
                prune(&mut stack, &mut queue, &is_hot);
                let demoted = stack.pop(0).expect("a hot one is the oldest");
                is_hot[demoted as usize] = false;
                queue.push(demoted, COLD);
                if queue.len(COLD) > most_cold.max(1) {
                    let out = queue.pop(COLD).expect("it is not empty");
                    if stack.is_in(out, 0) {
                        queue.push(out, GONE);
                    }
                }
            } else {
                queue.push(id, COLD);
            }
            while queue.len(GONE) > 2 * room {
                let out = queue.pop(GONE).expect("it is not empty");
                stack.remove(out);
            }
        }
        prune(&mut stack, &mut queue, &is_hot);
    }
    hits
}

/// The oldest of the stack is a hot one.
fn prune(stack: &mut Lists<1>, queue: &mut Lists<2>, is_hot: &[bool]) {
    while let Some(oldest) = stack.oldest(0).filter(|id| !is_hot[*id as usize]) {
        stack.remove(oldest);
        if queue.is_in(oldest, 1) {
            queue.remove(oldest);
        }
    }
}

/// J. Yang et al., SOSP '23: a tenth for what is new.
pub fn s3_fifo(trace: &[u32], ids: usize, room: usize) -> usize {
    const SMALL: usize = 0;
    const MAIN: usize = 1;
    const GHOST: usize = 2;
    let most_small = (room / 10).max(1);
    let most_main = room - most_small;
    let mut lists = Lists::<3>::new(ids);
    let mut count = vec![0_u8; ids];
    let mut hits = 0;
    for &id in trace {
        let at = id as usize;
        if lists.is_in(id, SMALL) || lists.is_in(id, MAIN) {
            hits += 1;
            count[at] = (count[at] + 1).min(3);
            continue;
        }
        let is_known = lists.is_in(id, GHOST);
        lists.remove(id);
        while lists.len(SMALL) + lists.len(MAIN) >= room {
            if lists.len(SMALL) >= most_small || lists.len(MAIN) == 0 {
                let out = lists.pop(SMALL).expect("it is not empty");
                if count[out as usize] > 1 {
                    count[out as usize] = 0;
                    lists.push(out, MAIN);
                    if lists.len(MAIN) > most_main {
                        evict_main(&mut lists, &mut count);
                    }
                } else {
                    lists.push(out, GHOST);
                    if lists.len(GHOST) > most_main {
                        lists.pop(GHOST);
                    }
                }
            } else {
                evict_main(&mut lists, &mut count);
            }
        }
        count[at] = 0;
        lists.push(id, if is_known { MAIN } else { SMALL });
    }
    hits
}

fn evict_main(lists: &mut Lists<3>, count: &mut [u8]) {
    while let Some(oldest) = lists.pop(1) {
        if count[oldest as usize] == 0 {
            break;
        }
        count[oldest as usize] -= 1;
        lists.push(oldest, 1);
    }
}

/// G. Einziger et al., TinyLFU, 2017: a hundredth for the window, four fifths of the rest protected; counts are exact
/// to 15, halved each ten times as many reads as there is room.
pub fn w_tiny_lfu(trace: &[u32], ids: usize, room: usize) -> usize {
    const WINDOW: usize = 0;
    const PROBATION: usize = 1;
    const PROTECTED: usize = 2;
    let most_window = (room / 100).max(1);
    let most_main = room - most_window;
    let most_protected = most_main * 4 / 5;
    let mut lists = Lists::<3>::new(ids);
    let mut counts = vec![0_u8; ids];
    let (mut hits, mut reads) = (0, 0);
    for &id in trace {
        counts[id as usize] = (counts[id as usize] + 1).min(15);
        reads += 1;
        if reads >= 10 * room {
            reads /= 2;
            counts.iter_mut().for_each(|count| *count /= 2);
        }
        if lists.is_in(id, WINDOW) {
            hits += 1;
            lists.push(id, WINDOW);
        } else if lists.is_in(id, PROBATION) || lists.is_in(id, PROTECTED) {
            hits += 1;
            lists.push(id, PROTECTED);
            if lists.len(PROTECTED) > most_protected {
                let demoted = lists.pop(PROTECTED).expect("it is not empty");
                lists.push(demoted, PROBATION);
            }
        } else {
            lists.push(id, WINDOW);
            if lists.len(WINDOW) <= most_window {
                continue;
            }
            let candidate = lists.pop(WINDOW).expect("it is not empty");
            if lists.len(PROBATION) + lists.len(PROTECTED) < most_main {
                lists.push(candidate, PROBATION);
                continue;
            }
            let list = if lists.len(PROBATION) > 0 { PROBATION } else { PROTECTED };
            if let Some(victim) = lists.oldest(list)
                && counts[candidate as usize] > counts[victim as usize]
            {
                lists.remove(victim);
                lists.push(candidate, PROBATION);
            }
        }
    }
    hits
}

/// The offline optimum: what is read again last leaves.
pub fn belady(trace: &[u32], ids: usize, room: usize) -> usize {
    let mut next = vec![u32::MAX; trace.len()];
    let mut seen = vec![u32::MAX; ids];
    for (at, &id) in trace.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut seen[id as usize], at as u32);
    }
    let mut by_next = std::collections::BinaryHeap::new();
    // When a cached block is read again.
    let mut cached = vec![0_u32; ids];
    let (mut blocks, mut hits) = (0, 0);
    for (at, &id) in trace.iter().enumerate() {
        let is_hit = cached[id as usize] == at as u32 && at > 0;
        hits += usize::from(is_hit);
        if !is_hit && next[at] == u32::MAX {
            continue;
        }
        cached[id as usize] = next[at];
        by_next.push((next[at], id));
        if !is_hit && blocks == room {
            // Entries of blocks that were read since are passed over.
            while let Some((when, out)) = by_next.pop() {
                if cached[out as usize] == when {
                    cached[out as usize] = 0;
                    break;
                }
            }
        } else {
            blocks += usize::from(!is_hit);
        }
    }
    hits
}
