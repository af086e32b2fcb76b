//! The ways of a transaction's steps through the trees, noted when they are prepared and followed when they are done: nothing
//! changes in between, so that nobody searches a node twice.

/// Where some neighbouring steps go from an interior node.
#[derive(Clone, Copy)]
enum Turn {
    /// What follows is of the next tree.
    Tree,
    /// Through this child go so many of the steps that are left for the node.
    Child { child: u32, steps: u32 },
}

/// The turns of all steps, in the order in which the trees are walked.
#[derive(Default)]
pub struct Route {
    turns: Vec<Turn>,
    /// Turns that have been followed.
    done: usize,
    /// The tree is no longer what it was when the turns were noted.
    lost: bool,
}

/// Room for turns that is kept for the next transaction.
const TURNS_KEPT: usize = 4096;

impl Route {
    /// Forgets all turns, for other steps.
    pub fn clear(&mut self) {
        self.turns.clear();
        if self.turns.capacity() > TURNS_KEPT {
            self.turns = Vec::new();
        }
        (self.done, self.lost) = (0, false);
    }

    /// What is noted from here on is of another tree.
    pub(super) fn note_tree(&mut self) {
        self.turns.push(Turn::Tree);
    }

    /// Notes that the first `steps` of those that are left for a node go through this child of it.
    pub(super) fn note(&mut self, child: usize, steps: usize) {
        // A node has less than 4096 children, and a transaction's steps are bytes in memory.
        self.turns.push(Turn::Child { child: child as u32, steps: steps as u32 });
    }

    /// Goes on to the next tree.
    pub(super) fn follow_tree(&mut self) {
        let rest = self.turns.get(self.done..).unwrap_or_default();
        let found = rest.iter().position(|turn| matches!(turn, Turn::Tree));
        (self.done, self.lost) = (self.done + found.map_or(rest.len(), |at| at + 1), found.is_none());
    }

    /// The next turn: the child, and how many of the steps that are left for the node go there. `None`: search.
    #[inline]
    pub(super) fn follow(&mut self) -> Option<(usize, usize)> {
        match self.turns.get(self.done) {
            Some(&Turn::Child { child, steps }) if !self.lost => {
                self.done += 1;
                Some((child as usize, steps as usize))
            }
            _ => None,
        }
    }

    /// The rest of this tree is searched: nodes have come or gone.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }
}
