"""Whom a node talks to, and what strangers can take from it."""

from mutant import Mutant

HANDSHAKE = "cluster/raft/handshake.py"
TRANSPORT = "cluster/raft/transport.py"

RULES = (
    Mutant(
        "proofs-are-not-checked",
        "Only who knows the cluster's secret is a member (F5, RAFT-20).",
        f"{HANDSHAKE}::Transcript.check",
        "if not hmac.compare_digest(self.proof(role).mac, proof.mac):",
        "if False:",
        [
            "test_raft20_a_reflected_proof_is_refused",
            "test_raft20_a_proof_is_bound_to_all_that_was_said",
        ],
    ),
    Mutant(
        "strangers-may-say-who-they-are",
        "Only a name of the list of members is let in (F5, RAFT-20).",
        f"{TRANSPORT}::TcpNetwork.check_hello",
        "if hello.receiver != self.name or hello.sender not in self._connections:",
        "if False:",
        ["test_f5_raft20_a_stranger_gets_no_challenge"],
    ),
    Mutant(
        "strangers-may-fill-memory",
        "Before it has proved itself, nobody may announce a long frame (F5, RAFT-20).",
        f"{TRANSPORT}::Connection._take_frames",
        "if length > (limit if self.peer is not None else MAX_HANDSHAKE_FRAME):",
        "if length > limit:",
        ["test_f5_raft20_a_stranger_gets_no_challenge"],
    ),
    Mutant(
        "crowd-keeps-members-out",
        "A crowd of strangers that say nothing keeps no member out (RAFT-20).",
        f"{TRANSPORT}::TcpNetwork.admit",
        "                waiting[0].abort()\n                del self._strangers[waiting[0]]\n",
        "                return False\n",
        ["test_raft20_idle_strangers_keep_no_member_out"],
    ),
    Mutant(
        "strangers-without-number",
        "Connections that have not proved themselves are bounded in number (RAFT-20).",
        f"{TRANSPORT}::TcpNetwork.admit",
        "if len(waiting) >= self.settings.max_strangers:",
        "if False:",
        ["test_raft20_of_strangers_beyond_the_limit_the_oldest_are_closed_at_once"],
    ),
    Mutant(
        "frames-are-not-checked",
        "A frame that is forged, repeated or damaged ends the connection (F5, RAFT-20).",
        f"{TRANSPORT}::Connection._on_frame",
        "if not secrets.compare_digest(self._receive_mac.next(body), content[:MAC_BYTES]):",
        "if False:",
        ["test_raft20_a_forged_repeated_or_damaged_frame_ends_the_connection"],
    ),
)
