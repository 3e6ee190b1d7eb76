//! The command and its process group: starting it, signalling it, and knowing when all of it is gone.
//!
//! The leader is first observed without being reaped: as long as it is a zombie, no other process can get its id, and a
//! signal to the group reaches the group. What the leader leaves behind becomes a child of fencepost, so the id stays
//! in use until fencepost itself has reaped the last of them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, kill_process, kill_process_group,
    test_kill_process_group, waitid, waitpgid, waitpid,
};

use crate::exit::Ended;
use crate::unchecked::{Start, before_exec};
use crate::warden::Target;

/// A command and the processes that belong to it.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    target: Target,
    ended: Option<Ended>,
}

/// The process group in which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// A process group of its own: every process in it is the command.
    OwnGroup,
    /// The group of fencepost, to share its terminal: only the first process is the command.
    OurGroup,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    /// The leader runs.
    Running,
    /// The leader has exited and is not reaped: signals to the group are safe.
    LeaderExited,
    /// The leader is gone, other processes of its group are not.
    Stragglers,
    /// No process is left.
    Gone,
}

impl Group {
    /// Starts a command. It registers with the warden before it is executed, and is not executed after its lease. Must be
    /// called on the main thread.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn spawn(command: &mut Command, placement: Placement, start: Start) -> io::Result<Self> {
        adopt_orphans()?;
        let target = match placement {
            Placement::OwnGroup => Target::Group,
            Placement::OurGroup => Target::Process,
        };
        if placement == Placement::OwnGroup {
            command.process_group(0);
        }
        before_exec(command, target, start);
        let child = command.spawn()?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("the process id is out of range"))?;
        Ok(Self { id, target: target(id), ended: None })
    }

    /// Returns the id of the leader, which is that of the group.
    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// Returns what is killed if the lock is lost.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// Returns how the leader ended, once it has been reaped.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Returns the state of the group, and reaps adopted processes other than its leader and the warden.
    ///
    /// # Errors
    /// If the leader is not a child of this process.
    pub(crate) fn state(&mut self, warden: Option<Pid>) -> io::Result<GroupState> {
        if self.ended.is_none() {
            let exited = self.wait_for_leader(WaitIdOptions::NOWAIT)?.is_some();
            if !exited {
                reap_orphans(&[Some(self.id), warden]);
            }
            return Ok(if exited { GroupState::LeaderExited } else { GroupState::Running });
        }
        if self.is_one_process() {
            return Ok(GroupState::Gone);
        }
        self.reap();
        // A process that forks and exits is missed by one scan: its child was not there when the list of processes was
        // read. But then an adopted process has ended meanwhile, or the second scan finds the child.
        let gone = test_kill_process_group(self.id) == Err(Errno::SRCH)
            || (0..2).all(|_| only_zombies(self.id) && !self.reap());
        Ok(if gone { GroupState::Gone } else { GroupState::Stragglers })
    }

    /// Reaps the processes of the group that are children of this process. Returns whether there were any.
    fn reap(&self) -> bool {
        let mut any = false;
        while let Ok(Some(_)) = waitpgid(self.id, WaitOptions::NOHANG) {
            any = true;
        }
        any
    }

    /// Returns whether only the first process is the command.
    pub(crate) fn is_one_process(&self) -> bool {
        matches!(self.target, Target::Process(_))
    }

    /// Returns the signal that stopped the leader, if it is stopped.
    pub(crate) fn stopped_by(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.id), options).ok()??;
        status.stopping_signal().and_then(Signal::from_named_raw)
    }

    /// Reaps the leader, after the rest of its group was sent TERM.
    ///
    /// # Errors
    /// If the leader is not a child of this process.
    pub(crate) fn reap_leader(&mut self) -> io::Result<()> {
        if let Some(status) = self.wait_for_leader(WaitIdOptions::empty())? {
            self.ended = Some(ended(&status));
        }
        Ok(())
    }

    fn wait_for_leader(&self, options: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
        Ok(waitid(WaitId::Pid(self.id), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | options)?)
    }

    /// Sends a signal to the whole group. A group that is gone is no failure.
    ///
    /// # Errors
    /// If no process of the group may be signalled.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = match self.target {
            Target::Group(id) => kill_process_group(id, signal),
            // The id of a leader that was reaped may belong to another process.
            Target::Process(_) if self.ended.is_some() => Ok(()),
            Target::Process(id) => kill_process(id, signal),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends TERM to the whole group, and CONT so that stopped processes receive it.
    ///
    /// # Errors
    /// If no process of the group may be signalled.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)
    }
}

fn ended(status: &WaitIdStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Killed(signal.unwrap_or(0)),
    }
}

/// Returns whether only zombies are left of a group, whose parents live outside of it and do not wait for them. They can
/// do nothing any more, and only their parents can reap them.
fn only_zombies(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let mut found = false;
    for process in processes.flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        match is_alive_in(&stat, group) {
            Some(true) => return false,
            Some(false) => found = true,
            None => {}
        }
    }
    found
}

/// Returns whether a process is alive, by its `stat`; `None` if it does not belong to this group.
fn is_alive_in(stat: &str, group: Pid) -> Option<bool> {
    // The name is in parentheses and may contain anything; state, parent and group follow it.
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let (state, id) = (fields.next(), fields.nth(1)?.parse().ok());
    // A process whose first thread has ended looks like a zombie while the others run.
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    (id == Some(group.as_raw_pid())).then_some(!matches!(state, Some("Z" | "X")) || threads > 1)
}

/// Makes fencepost the parent of processes that its descendants leave behind.
#[cfg(target_os = "linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// Reaps adopted processes while the leader runs. Waiting for any child could reap the leader itself.
fn reap_orphans(ours: &[Option<Pid>]) {
    let main = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/self/task/{main}/children")).unwrap_or_default();
    let children = children.split_ascii_whitespace().filter_map(|id| id.parse().ok().and_then(Pid::from_raw));
    for child in children.filter(|child| !ours.contains(&Some(*child))) {
        // A process that still runs is reaped later.
        let _ = waitpid(Some(child), WaitOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use fencepost::clock::Moment;
    use nix::sys::signal::SigSet;

    use super::*;

    fn start(socket: impl Into<OwnedFd>) -> Start {
        Start { socket: socket.into(), mask: SigSet::empty(), until: Moment::NEVER }
    }

    fn spawn(command: &mut Command) -> io::Result<Group> {
        let (_, socket) = UnixStream::pair()?;
        Group::spawn(command, Placement::OwnGroup, start(socket))
    }

    /// Waits until the group is in this state.
    fn until(group: &mut Group, expected: GroupState) {
        while group.state(None).unwrap() != expected {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_exit_of_the_leader_is_observed_before_it_is_reaped() {
        let mut group = spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        until(&mut group, GroupState::LeaderExited);
        assert_eq!(group.ended(), None);
        assert_eq!(group.state(None).unwrap(), GroupState::LeaderExited, "it stays a zombie");
        group.reap_leader().unwrap();
        assert_eq!(group.ended(), Some(Ended::Exited(7)));
        assert_eq!(group.state(None).unwrap(), GroupState::Gone);
        group.terminate().unwrap();
    }

    #[test]
    fn stragglers_receive_a_signal_after_their_leader_is_gone() {
        let mut group = spawn(Command::new("sh").args(["-c", "sleep 1000 & exit 0"])).unwrap();
        until(&mut group, GroupState::LeaderExited);
        group.reap_leader().unwrap();
        assert_eq!(group.state(None).unwrap(), GroupState::Stragglers);
        group.signal(Signal::KILL).unwrap();
        until(&mut group, GroupState::Gone);
    }

    #[test]
    fn a_signal_that_kills_the_leader_is_reported() {
        let mut group = spawn(Command::new("sleep").arg("1000")).unwrap();
        assert_eq!(group.state(None).unwrap(), GroupState::Running);
        group.signal(Signal::KILL).unwrap();
        until(&mut group, GroupState::LeaderExited);
        group.reap_leader().unwrap();
        assert_eq!(group.ended(), Some(Ended::Killed(9)));
    }

    #[test]
    fn a_command_registers_with_the_warden_before_it_is_executed() {
        use std::io::Read;

        let (mut warden, socket) = UnixStream::pair().unwrap();
        for (placement, word) in [(Placement::OwnGroup, "group"), (Placement::OurGroup, "process")] {
            let mut command = Command::new("true");
            let mut group =
                Group::spawn(&mut command, placement, start(socket.try_clone().unwrap())).unwrap();
            let expected = format!("{word} {}\n", group.id());
            let mut received = vec![0; expected.len()];
            warden.read_exact(&mut received).unwrap();
            assert_eq!(String::from_utf8(received).unwrap(), expected);
            until(&mut group, GroupState::LeaderExited);
            group.reap_leader().unwrap();
        }
    }

    #[test]
    fn a_command_is_not_executed_after_its_lease() {
        let (_, socket) = UnixStream::pair().unwrap();
        let late = Start { until: Moment::START, ..start(socket) };
        let error = Group::spawn(&mut Command::new("true"), Placement::OwnGroup, late).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_zombie_with_threads_is_alive() {
        let stat = |state, threads| {
            format!(
                "28427 (a) Z (b) {state} 1 77 27911 0 -1 4227084 94 0 0 0 0 0 0 0 20 0 {threads} 0 15 0 0"
            )
        };
        let group = |id| Pid::from_raw(id).unwrap();
        assert_eq!(is_alive_in(&stat("S", 1), group(77)), Some(true));
        assert_eq!(is_alive_in(&stat("Z", 1), group(77)), Some(false));
        assert_eq!(is_alive_in(&stat("Z", 2), group(77)), Some(true), "its first thread has ended");
        assert_eq!(is_alive_in(&stat("S", 1), group(78)), None);
        assert_eq!(is_alive_in("", group(77)), None);
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error() {
        let error = spawn(&mut Command::new("/nonexistent/command")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
